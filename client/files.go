package client

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Files of any size, and whole folders, go over HTTP beside the socket, as they
// are read and written: nothing of them is kept in memory. Each call counts as
// activity, resumes a dormant environment, and holds it while bytes move.

// Download writes a file of an environment to w, and returns how many bytes that
// were. Where it fails, what was written is the file's beginning.
func (c *Client) Download(ctx context.Context, r Ref, path string, w io.Writer) (int64, error) {
	return c.download(ctx, r, url.Values{"path": {path}}, w)
}

// DownloadTar writes a folder, or a file, to w as a tar: with the modes, and with
// links as links. A sandbox may put any name into it: extract it with care.
func (c *Client) DownloadTar(ctx context.Context, r Ref, path string, w io.Writer) (int64, error) {
	return c.download(ctx, r, url.Values{"path": {path}, "format": {"tar"}}, w)
}

func (c *Client) download(ctx context.Context, r Ref, query url.Values, w io.Writer) (int64, error) {
	res, err := c.files(ctx, http.MethodGet, r, query, nil, "")
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	n, err := io.Copy(w, res.Body)
	if err != nil {
		return n, fmt.Errorf("client: download of %s: %w", query.Get("path"), cmp.Or(context.Cause(ctx), err))
	}
	return n, nil
}

// Upload writes a file of an environment from body, in place of what has the path
// once all of it is there; the folders above it are made. mode is its permissions;
// with 0 a file that is replaced keeps its own. Where it fails, nothing was
// written. A body that blocks for ever blocks Upload too, also once ctx has ended.
func (c *Client) Upload(ctx context.Context, r Ref, path string, body io.Reader, mode fs.FileMode) error {
	query := url.Values{"path": {path}}
	if mode != 0 {
		query.Set("mode", fmt.Sprintf("%04o", mode.Perm()))
	}
	return c.upload(ctx, r, query, body, "application/octet-stream", nil)
}

// UploadTar extracts a tar into a folder of an environment, which is made where it
// is missing, and returns how many entries it has. Files and links take the place
// of what has their names. Where it fails, the entries before stay, and the error
// says how many.
func (c *Client) UploadTar(ctx context.Context, r Ref, path string, body io.Reader) (entries int64, err error) {
	var done struct {
		Entries int64 `json:"entries"`
	}
	err = c.upload(ctx, r, url.Values{"path": {path}}, body, "application/x-tar", &done)
	return done.Entries, err
}

// UploadDir is UploadTar of all files, folders and symbolic links of a file system
// such as os.DirFS(dir).
func (c *Client) UploadDir(ctx context.Context, r Ref, path string, fsys fs.FS) (entries int64, err error) {
	pr, pw := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		w := tar.NewWriter(pw)
		err := w.AddFS(fsys)
		if err == nil {
			err = w.Close()
		}
		pw.CloseWithError(err)
		packed <- err
	}()
	stop := context.AfterFunc(ctx, func() { pr.CloseWithError(context.Cause(ctx)) })
	defer stop()
	entries, err = c.UploadTar(ctx, r, path, pr)
	pr.CloseWithError(io.ErrClosedPipe)
	if packErr := <-packed; packErr != nil && !errors.Is(packErr, io.ErrClosedPipe) {
		err = cmp.Or(context.Cause(ctx), fmt.Errorf("client: upload of a folder: %w", packErr))
	}
	return entries, err
}

func (c *Client) upload(ctx context.Context, r Ref, query url.Values, body io.Reader, kind string, result any) error {
	res, err := c.files(ctx, http.MethodPut, r, query, body, kind)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if result == nil {
		return nil
	}
	if err := json.NewDecoder(res.Body).Decode(result); err != nil {
		return fmt.Errorf("client: answer to an upload: %w", err)
	}
	return nil
}

// files makes a call on an environment's files. Its answer is 200, and the
// caller's to close.
func (c *Client) files(ctx context.Context, method string, r Ref, query url.Values, body io.Reader, kind string) (*http.Response, error) {
	id := r.Env
	if id == "" {
		e, err := c.Env(ctx, r)
		if err != nil {
			return nil, err
		}
		id = e.ID
	}
	u, err := url.Parse(c.url)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	u.Scheme = map[string]string{"ws": "http", "wss": "https"}[u.Scheme]
	if u.Scheme == "" {
		u.Scheme, _, _ = strings.Cut(c.url, ":")
	}
	u.Path, u.RawQuery = strings.TrimSuffix(u.Path, "/agent"), query.Encode()
	u = u.JoinPath("envs", id, "files")
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+c.opt.Token)
	if c.opt.Owner != "" {
		req.Header.Set("Sandkeeper-Owner", c.opt.Owner)
	}
	if body != nil {
		req.Header.Set("Content-Type", kind)
		req.Header.Set("Expect", "100-continue") // a refusal comes ahead of the body
	}
	res, err := cmp.Or(c.opt.HTTPClient, http.DefaultClient).Do(req)
	if err != nil {
		return nil, fmt.Errorf("client: %s of %s: %w", method, query.Get("path"), cmp.Or(context.Cause(ctx), err))
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		return nil, fileError(method+" files", res)
	}
	return res, nil
}

// fileError is the error that an answer tells.
func fileError(method string, res *http.Response) error {
	var told struct {
		Error struct {
			Kind    Kind   `json:"kind"`
			Message string `json:"message"`
			Errno   string `json:"errno"`
		} `json:"error"`
		Tombstone *Tombstone `json:"tombstone"`
	}
	const most = 64 << 10
	if err := json.NewDecoder(io.LimitReader(res.Body, most)).Decode(&told); err != nil || told.Error.Kind == "" {
		return &HandshakeError{Status: res.StatusCode}
	}
	e := &Error{Method: method, Code: res.StatusCode, Kind: told.Error.Kind, Message: told.Error.Message, Errno: told.Error.Errno, Tombstone: told.Tombstone}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	return e
}
