package main

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// TestFirstOf checks that the returned client is open if several attempts succeed at the same time.
func TestFirstOf(t *testing.T) {
	const attempts = 30 // so that one is interrupted now and then
	for range 300 {
		start := make(chan struct{})
		a, err := firstOf(attempts, func(i int) attempt {
			client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://127.0.0.1:1"}, Logger: zap.NewNop()})
			if i == attempts-1 {
				close(start)
			}
			<-start
			return attempt{client: client, err: err}
		})
		if err != nil {
			t.Fatal(err)
		}
		if a.client.Ctx().Err() != nil {
			t.Fatal("the client is closed")
		}
		if err := a.client.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
