// Package web holds what the operators' page is made of: templates in
// web/templates, and the static files, embedded here. The third-party scripts
// among them are copied in by make; a build without them serves a page that
// works by forms and links alone, and says so.
package web

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
)

//go:embed static
var embedded embed.FS

// Static is the tree of static files.
func Static() fs.FS {
	sub, err := fs.Sub(embedded, "static")
	if err != nil {
		panic(err) // the name is embedded above
	}
	return sub
}

// Versions gives each static file's address with a mark of its content, so that
// browsers may keep it for ever. Keys are paths such as "app.css".
func Versions(files fs.FS) (map[string]string, error) {
	versions := map[string]string{}
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(b)
		versions[path] = fmt.Sprintf("/static/%s?v=%s", path, hex.EncodeToString(sum[:6]))
		return nil
	})
	return versions, err
}
