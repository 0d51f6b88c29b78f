#!/bin/sh
# setup.sh starts an API server of Kubernetes with the resources of whereabouts, and writes its configuration. $ETCD is the
# program etcd, $KUBERNETES is a directory with kube-apiserver and kubectl, $CRDS is the directory of whereabouts' custom resources, and
# $TMPDIR is for files.
set -eu
dir=$(mktemp -d)
address=198.18.255.2 # of the host
openssl ecparam -genkey -name prime256v1 -noout -out "$dir/key"
echo "token,admin,admin,system:masters" >"$dir/tokens"
"$ETCD" --data-dir="$dir/etcd" --unsafe-no-fsync --log-level=error --listen-peer-urls=http://127.0.0.1:2380 >"$dir/etcd.log" 2>&1 &
"$KUBERNETES/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --bind-address=$address --advertise-address=$address \
	--cert-dir="$dir" --token-auth-file="$dir/tokens" --authorization-mode=RBAC --service-cluster-ip-range=10.96.0.0/16 \
	--service-account-issuer=https://kubernetes.test --service-account-key-file="$dir/key" \
	--service-account-signing-key-file="$dir/key" >"$dir/kube-apiserver.log" 2>&1 &
mkdir -p /run/whereabouts
cat >/run/whereabouts/kubeconfig <<END
apiVersion: v1
kind: Config
current-context: host
contexts: [{name: host, context: {cluster: host, user: admin}}]
clusters: [{name: host, cluster: {server: "https://$address:6443", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: token}}]
END
echo '{"kubernetes": {"kubeconfig": "/run/whereabouts/kubeconfig"}}' >/run/whereabouts/whereabouts.conf
export KUBECONFIG=/run/whereabouts/kubeconfig HOME="$dir"
until "$KUBERNETES/kubectl" get --raw /readyz >/dev/null 2>&1; do sleep 0.2; done
for file in "$CRDS"/whereabouts.cni.cncf.io_*.yaml; do "$KUBERNETES/kubectl" apply -f "$file" >/dev/null; done
"$KUBERNETES/kubectl" wait --for=condition=Established customresourcedefinition --all --timeout=30s >/dev/null
until "$KUBERNETES/kubectl" get namespace kube-system >/dev/null 2>&1; do sleep 0.2; done
