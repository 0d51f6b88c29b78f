// sbom prints the bill of materials of a release as SPDX 2.3: its archives, and the
// modules that are linked into their executables, as the linker noted them there.
//
//	sbom VERSION ARCHIVE=DIRECTORY…      DIRECTORY has the executables of the archive
package main

import (
	"crypto/sha256"
	"crypto/sha512"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	plumbModule = "github.com/plumb-cni/plumb/v2"
	home        = "https://github.com/plumb-cni/plumb"
)

// A document and what is in it have the fields and names of SPDX 2.3, clauses 6, 7
// and 11.
type document struct {
	SPDXVersion       string         `json:"spdxVersion"`
	DataLicense       string         `json:"dataLicense"`
	SPDXID            string         `json:"SPDXID"`
	Name              string         `json:"name"`
	DocumentNamespace string         `json:"documentNamespace"`
	CreationInfo      creation       `json:"creationInfo"`
	Packages          []spdxPackage  `json:"packages"`
	Relationships     []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	SPDXID           string     `json:"SPDXID"`
	Name             string     `json:"name"`
	VersionInfo      string     `json:"versionInfo"`
	PackageFileName  string     `json:"packageFileName,omitempty"`
	Supplier         string     `json:"supplier,omitempty"`
	DownloadLocation string     `json:"downloadLocation"`
	FilesAnalyzed    bool       `json:"filesAnalyzed"`
	Checksums        []checksum `json:"checksums,omitempty"`
	LicenseConcluded string     `json:"licenseConcluded"`
	LicenseDeclared  string     `json:"licenseDeclared"`
	CopyrightText    string     `json:"copyrightText"`
	Comment          string     `json:"comment,omitempty"`
	AttributionTexts []string   `json:"attributionTexts,omitempty"`
	ExternalRefs     []external `json:"externalRefs,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type external struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

// An archive is one file of the release, and the modules in its executables.
type archive struct {
	path    string
	modules map[string]*debug.Module // by path and version; Go itself is module "std"
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: sbom VERSION ARCHIVE=DIRECTORY…")
	}
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	var archives []archive
	for _, arg := range args[1:] {
		path, directory, _ := strings.Cut(arg, "=")
		modules, err := linked(directory)
		if err != nil {
			return err
		}
		archives = append(archives, archive{path, modules})
	}
	doc, err := describe(args[0], archives)
	if err != nil {
		return err
	}
	doc.CreationInfo.Created = time.Unix(epoch, 0).UTC().Format(time.RFC3339)
	text, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(append(text, '\n'))
	return err
}

// linked are the modules in the executables of the directory, but for plumb itself.
func linked(directory string) (map[string]*debug.Module, error) {
	files, err := os.ReadDir(directory)
	if err != nil {
		return nil, err
	}
	modules := map[string]*debug.Module{}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode()&0o111 == 0 {
			continue
		}
		info, err := buildinfo.ReadFile(filepath.Join(directory, f.Name()))
		if err != nil {
			return nil, fmt.Errorf("read what is linked: %w", err)
		}
		modules["std"] = &debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}
		for _, m := range info.Deps {
			if m.Path == plumbModule {
				continue // the datastore's module names the directory above it
			}
			if m.Replace != nil && !patched(m) {
				return nil, fmt.Errorf("%s: module %s is replaced by %s: a release is made of what go.sum and scripts/modfile.sh name",
					f.Name(), m.Path, m.Replace.Path)
			}
			modules[name(m)+"@"+m.Version] = m
		}
	}
	if len(modules) == 0 {
		return nil, fmt.Errorf("no executable in %s", directory)
	}
	return modules, nil
}

// patched reports whether the module is the copy that scripts/modfile.sh makes.
func patched(m *debug.Module) bool {
	return m.Replace != nil && strings.HasPrefix(m.Replace.Path, "./.patched/")
}

// name is what the document calls the module. A module and its patched copy may both be
// linked, for different architectures, and two versions of a module: the datastore has a go.mod of its own.
func name(m *debug.Module) string {
	if patched(m) {
		return m.Path + "-patched"
	}
	return m.Path
}

// describe makes the document: plumb, its archives, and what they statically link.
func describe(version string, archives []archive) (document, error) {
	plumb := spdxPackage{
		SPDXID: "SPDXRef-plumb", Name: "plumb", VersionInfo: version, Supplier: "Organization: plumb-cni",
		DownloadLocation: "git+" + home + "@" + version, LicenseConcluded: "Apache-2.0", LicenseDeclared: "Apache-2.0",
		CopyrightText: "NOASSERTION", ExternalRefs: purl(plumbModule, version),
	}
	doc := document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: "cni-plugins-linux-" + version,
		CreationInfo:  creation{Creators: []string{"Organization: plumb-cni", "Tool: plumb-sbom"}},
		Packages:      []spdxPackage{plumb},
		Relationships: []relationship{{"SPDXRef-DOCUMENT", "DESCRIBES", plumb.SPDXID}},
	}
	all := map[string]*debug.Module{}
	content := sha256.New()
	for _, a := range archives {
		p, err := a.asPackage(version)
		if err != nil {
			return doc, err
		}
		doc.Packages = append(doc.Packages, p)
		doc.Relationships = append(doc.Relationships,
			relationship{"SPDXRef-DOCUMENT", "DESCRIBES", p.SPDXID}, relationship{p.SPDXID, "GENERATED_FROM", plumb.SPDXID})
		for _, path := range slices.Sorted(maps.Keys(a.modules)) {
			doc.Relationships = append(doc.Relationships, relationship{p.SPDXID, "STATIC_LINK", id(path)})
		}
		maps.Copy(all, a.modules)
		fmt.Fprintln(content, p.PackageFileName, p.Checksums)
	}
	doc.DocumentNamespace = fmt.Sprintf("%s/spdx/%s-%x", home, version, content.Sum(nil)[:16])
	for _, path := range slices.Sorted(maps.Keys(all)) {
		p, err := modulePackage(all[path])
		if err != nil {
			return doc, err
		}
		doc.Packages = append(doc.Packages, p)
	}
	return doc, nil
}

func (a archive) asPackage(version string) (spdxPackage, error) {
	content, err := os.ReadFile(a.path)
	if err != nil {
		return spdxPackage{}, err
	}
	name := filepath.Base(a.path)
	return spdxPackage{
		SPDXID: id(name), Name: name, VersionInfo: version, PackageFileName: "./" + name, Supplier: "Organization: plumb-cni",
		DownloadLocation: home + "/releases/download/" + version + "/" + name,
		Checksums: []checksum{
			{"SHA256", fmt.Sprintf("%x", sha256.Sum256(content))}, {"SHA512", fmt.Sprintf("%x", sha512.Sum512(content))},
		},
		LicenseConcluded: "NOASSERTION", LicenseDeclared: "Apache-2.0", CopyrightText: "NOASSERTION",
	}, nil
}

// modulePackage describes a module. Its licence text goes with it: those of what is
// linked want it in what comes with the executables.
func modulePackage(m *debug.Module) (spdxPackage, error) {
	dir, err := sources(m)
	if err != nil {
		return spdxPackage{}, err
	}
	text, err := licence(dir)
	if err != nil {
		return spdxPackage{}, err
	}
	p := spdxPackage{
		SPDXID: id(name(m) + "@" + m.Version), Name: name(m), VersionInfo: m.Version, DownloadLocation: "https://proxy.golang.org/" + escape(m.Path) + "/@v/" + m.Version + ".zip",
		LicenseConcluded: "NOASSERTION", LicenseDeclared: identify(text), CopyrightText: "NOASSERTION",
		AttributionTexts: []string{text}, ExternalRefs: purl(m.Path, m.Version),
	}
	if m.Path == "std" {
		p.SPDXID, p.Name, p.DownloadLocation = id(m.Path), "Go standard library", "https://go.dev/dl/go"+m.Version+".src.tar.gz"
		return p, nil
	}
	p.Comment = "go.sum: " + m.Sum
	if patched(m) {
		p.Comment = "a copy of " + m.Path + " that scripts/modfile.sh changed, so that it compiles for 32-bit processors"
	}
	return p, nil
}

// sources is the directory of the module's sources: they have just been compiled.
func sources(m *debug.Module) (string, error) {
	variable, below := "GOMODCACHE", escape(m.Path)+"@"+m.Version
	if m.Path == "std" {
		variable, below = "GOROOT", ""
	}
	out, err := exec.Command("go", "env", variable).Output()
	if err != nil {
		return "", fmt.Errorf("go env %s: %w", variable, err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), below), nil
}

func licence(dir string) (string, error) {
	for _, name := range []string{"LICENSE", "LICENSE.md", "LICENSE.txt", "COPYING"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if !errors.Is(err, fs.ErrNotExist) {
			return string(text), err
		}
	}
	return "", fmt.Errorf("no licence in %s", dir)
}

// identify gives the SPDX identifier of a licence's text, of those that occur.
func identify(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	for _, licence := range []struct{ id, phrase string }{
		{"Apache-2.0", "Apache License Version 2.0, January 2004"},
		{"MIT", "Permission is hereby granted, free of charge, to any person obtaining a copy"},
		{"BSD-3-Clause", "may be used to endorse or promote products derived from"},
		{"BSD-2-Clause", "Redistributions in binary form must reproduce the above copyright notice"}, // BSD-3-Clause has it too
	} {
		if strings.Contains(text, licence.phrase) {
			return licence.id
		}
	}
	return "NOASSERTION"
}

func purl(module, version string) []external {
	return []external{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + module + "@" + strings.ReplaceAll(version, "+", "%2B")}}
}

// id is the element's name in the document: letters, digits, dots and dashes.
func id(name string) string {
	return "SPDXRef-" + strings.Map(func(r rune) rune {
		if r == '.' || r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '-'
	}, name)
}

// escape is the module's path in the proxy's address, where capitals are "!" and small.
func escape(path string) string {
	var b strings.Builder
	for _, r := range path {
		if 'A' <= r && r <= 'Z' {
			b.WriteByte('!')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}
