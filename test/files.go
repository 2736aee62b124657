package test

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"testing"
)

// FileCall is one call on an environment's files over HTTP.
type FileCall struct {
	Method string
	Env    string
	Path   string
	Token  string // the agent's of the first start where ""
	Query  url.Values
	Header http.Header
	Body   io.Reader
}

// Files makes the call. Who gets the answer closes it.
func (s *Server) Files(t testing.TB, ctx context.Context, f FileCall) *http.Response {
	t.Helper()
	q := url.Values{"path": {f.Path}}
	for k, v := range f.Query {
		q[k] = v
	}
	req, err := http.NewRequestWithContext(ctx, f.Method, s.URL+"/api/v1/envs/"+f.Env+"/files?"+q.Encode(), f.Body)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range f.Header {
		req.Header[k] = v
	}
	if f.Token == "" {
		f.Token = s.Token(t, "agent")
	}
	req.Header.Set("Authorization", "Bearer "+f.Token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", f.Method, f.Path, err)
	}
	return res
}

// FileText makes the call and returns the answer's status and body.
func (s *Server) FileText(t testing.TB, f FileCall) (status int, body string, header http.Header) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	res := s.Files(t, ctx, f)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", f.Method, f.Path, err)
	}
	return res.StatusCode, string(b), res.Header
}
