package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/plumb-cni/plumb/v2/cmd/plumb/internal/node"
	"github.com/plumb-cni/plumb/v2/pkg/types"
	"github.com/plumb-cni/plumb/v2/pkg/version"
)

func newReport() *cobra.Command {
	c := &cobra.Command{
		Use:   "report",
		Short: "Write an archive for a bug report",
		Long: `report writes a compressed tar archive with the versions, the findings of doctor, the resources of list, the host's interfaces,
routes, rules and nftables and iptables rulesets, and the network configurations without passwords, tokens and keys. It prints
the files in the archive. Read them before you publish the archive, because they contain addresses and names.`,
		Args: usage(cobra.NoArgs),
	}
	places := addPlaces(c)
	path := c.Flags().String("file", "", "the `file` to write (default plumb-report-TIME.tar.gz in the current directory)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *path == "" {
			*path = "plumb-report-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
		}
		files := reportFiles(c.Context(), places, placeFlags(c.Flags()))
		file, err := os.OpenFile(*path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		if err := errors.Join(writeArchive(file, files), file.Close()); err != nil {
			return fmt.Errorf("%s: %w", *path, err)
		}
		for _, f := range files {
			printf(c.OutOrStdout(), "%8d bytes  %s\n", len(f.text), f.name)
		}
		printf(c.OutOrStdout(), "wrote %s; read it before you publish it\n", *path)
		return nil
	}
	return c
}

// A reportFile is a file of the archive.
type reportFile struct {
	name string
	text []byte
}

// reportFiles returns the files of the archive. A file contains the error of a part that cannot be read.
func reportFiles(ctx context.Context, p *places, flags string) []reportFile {
	files := []reportFile{{"version.txt", fmt.Appendf(nil, "plumb %s\n", version.String())}}
	self, err := os.Executable()
	if err != nil {
		self = "plumb"
	}
	for _, f := range [][2]string{
		{"doctor.txt", types.Command(self, "doctor", "-v") + flags}, {"list.json", types.Command(self, "list", "--all", "-o", "json") + flags},
		{"metrics.txt", types.Command(self, "metrics") + flags},
		{"system.txt", "uname -a; cat /etc/os-release"}, {"executables.txt", "ls -l " + types.Command(p.PluginPath...)},
		{"links.txt", "ip -details link"}, {"addresses.txt", "ip address"}, {"routes.txt", "ip route show table all; ip -6 route show table all"},
		{"rules.txt", "ip rule; ip -6 rule"}, {"nftables.txt", "nft list ruleset"}, {"iptables.txt", "iptables-save; ip6tables-save"},
	} {
		cmd := exec.CommandContext(ctx, "sh", "-c", f[1])
		text, err := cmd.CombinedOutput()
		if err != nil {
			text = fmt.Appendf(text, "%v\n", err)
		}
		files = append(files, reportFile{f[0], text})
	}
	for _, dir := range p.ConfDirs {
		paths, _ := filepath.Glob(filepath.Join(dir, "*.conf*")) // the pattern is valid
		for _, path := range paths {
			text, err := node.ReadFile(path)
			if err != nil {
				text = fmt.Appendln(nil, err)
			}
			files = append(files, reportFile{"conf/" + filepath.Base(path), redacted(text)})
		}
	}
	return files
}

// redacted replaces the values of keys that may be secret. It works on text, because a report must contain a wrong
// configuration as well.
func redacted(text []byte) []byte {
	secret := regexp.MustCompile(`(?i)("[^"]*(?:password|token|secret|key|credential)[^"]*"\s*:\s*)"(?:[^"\\]|\\.)*"`)
	return secret.ReplaceAll(text, []byte(`$1"REDACTED"`))
}

// writeArchive writes the files as a compressed tar archive.
func writeArchive(w io.Writer, files []reportFile) error {
	compressed := gzip.NewWriter(w)
	archive := tar.NewWriter(compressed)
	for _, f := range files {
		if err := archive.WriteHeader(&tar.Header{Name: "plumb-report/" + f.name, Mode: 0o600, Size: int64(len(f.text)), ModTime: time.Now()}); err != nil {
			return err
		}
		if _, err := archive.Write(f.text); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}
