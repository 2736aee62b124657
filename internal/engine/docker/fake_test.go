package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/registry"
	"github.com/docker/docker/api/types/system"

	"sandkeeper/internal/control"
)

// fake is an engine that says what a test has it say, for hosts and failures
// that the machine of the tests does not have.
type fake struct {
	*http.ServeMux
	path string // of its socket

	mu      sync.Mutex // guards the fields below
	info    system.Info
	creates []createBody
}

type createBody struct {
	container.Config
	HostConfig container.HostConfig
}

// capable is a host that can do everything but bound disks.
var capable = system.Info{
	ServerVersion: "27.0", Architecture: "x86_64", NCPU: 8, Driver: "overlay2",
	MemoryLimit: true, SwapLimit: true, CPUCfsQuota: true, CPUCfsPeriod: true, PidsLimit: true,
	SecurityOptions: []string{"name=seccomp,profile=builtin"},
}

var versioned = regexp.MustCompile(`^/v1\.\d+`)

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{ServeMux: http.NewServeMux(), path: filepath.Join(t.TempDir(), "docker.sock"), info: capable}
	f.HandleFunc("/_ping", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", "1.41") })
	f.HandleFunc("GET /info", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		answer(w, f.info)
	})
	return f
}

// listen has the fake answer from now on.
func (f *fake) listen(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", f.path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = versioned.ReplaceAllString(r.URL.Path, "")
		f.ServeHTTP(w, r)
	})}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() {
		server.Close()
		wg.Wait()
	})
}

// engine opens an Engine over the fake whose guest is installed.
func (f *fake) engine(t *testing.T, change func(*Options)) *Engine {
	t.Helper()
	opts := Options{
		Instance:     "i",
		Host:         Host{Address: "unix://" + f.path, Why: "the test"},
		Surroundings: surroundings(nil, nil),
		DataDir:      t.TempDir(),
		Binary:       func(string) ([]byte, error) { return nil, errors.New("no guest here") },
		CallTimeout:  5 * time.Second,
	}
	if change != nil {
		change(&opts)
	}
	e := open(t, opts)
	e.guest.done = true
	return e
}

func refuse(w http.ResponseWriter, status int, words string) {
	w.WriteHeader(status)
	answer(w, map[string]string{"message": words})
}

func answer(w io.Writer, v any) {
	if err := json.NewEncoder(w).Encode(v); err != nil {
		panic(http.ErrAbortHandler) // the client is gone
	}
}

// images has the fake know every image, and no volume.
func (f *fake) images() {
	f.HandleFunc("GET /images/{name}/json", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"Id":"sha256:1","Config":{"User":"user"}}`)
	})
	f.HandleFunc("GET /volumes/{name}", func(w http.ResponseWriter, r *http.Request) { refuse(w, 404, "no such volume") })
}

// creating has the fake make every container that check lets pass.
func (f *fake) creating(check func(createBody) (words string)) {
	f.images()
	f.HandleFunc("POST /containers/create", func(w http.ResponseWriter, r *http.Request) {
		var body createBody
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			refuse(w, 400, err.Error())
			return
		}
		f.mu.Lock()
		f.creates = append(f.creates, body)
		f.mu.Unlock()
		if words := check(body); words != "" {
			refuse(w, 400, words)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"Id":"c1","Warnings":["a warning"]}`)
	})
}

func (f *fake) created() []createBody {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.creates)
}

// inspecting has the fake know one container of ours, in that state.
func (f *fake) inspecting(state string) {
	f.HandleFunc("GET /containers/{name}/json", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		if name == "c1" {
			name = "sandkeeper-i-e"
		}
		fmt.Fprintf(w, `{"Id":"c1","Name":"/%s","Image":"sha256:1","State":%s,"Config":{"Labels":{"sandkeeper.instance":"i"}}}`, name, state)
	})
}

func fakeSpec(n int) control.SandboxSpec {
	return control.SandboxSpec{Name: fmt.Sprintf("sandkeeper-i-%d", n), Env: "e", Image: "img", Network: "none", Workdir: "/workspace",
		Limits: control.Limits{CPUs: 2, MemoryMB: 512, Pids: 64, DiskMB: 100}}
}

func TestLimitsThatAHostCannotEnforceComeBack(t *testing.T) {
	tests := []struct {
		name   string
		change func(*system.Info)
		want   []string
		check  func(container.Resources) bool
	}{
		{"all but disks", func(*system.Info) {}, []string{"disk_mb"},
			func(r container.Resources) bool {
				return r.NanoCPUs == 2e9 && r.Memory == 512<<20 && r.MemorySwap == 512<<20 && *r.PidsLimit == 64
			}},
		{"no CPU quota", func(i *system.Info) { i.CPUCfsQuota = false }, []string{"cpus", "disk_mb"},
			func(r container.Resources) bool { return r.NanoCPUs == 0 }},
		{"fewer CPUs than asked", func(i *system.Info) { i.NCPU = 1 }, []string{"disk_mb"},
			func(r container.Resources) bool { return r.NanoCPUs == 1e9 }},
		{"no memory limit", func(i *system.Info) { i.MemoryLimit = false }, []string{"memory_mb", "disk_mb"}, nil},
		{"no bound on swap: the memory is bounded still", func(i *system.Info) { i.SwapLimit = false }, []string{"memory_mb", "disk_mb"},
			func(r container.Resources) bool { return r.Memory == 512<<20 }},
		{"no limit of processes", func(i *system.Info) { i.PidsLimit = false }, []string{"pids", "disk_mb"},
			func(r container.Resources) bool { return r.PidsLimit == nil }},
		{"nothing", func(i *system.Info) { *i = system.Info{Architecture: "aarch64"} }, []string{"cpus", "memory_mb", "pids", "disk_mb"}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(t)
			test.change(&f.info)
			f.creating(func(createBody) string { return "" })
			f.listen(t)
			e := f.engine(t, nil)
			created, err := e.Create(t.Context(), fakeSpec(1))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(created.Unenforced, test.want) {
				t.Errorf("unenforced are %q, want %q", created.Unenforced, test.want)
			}
			if r := f.created()[0].HostConfig.Resources; test.check != nil && !test.check(r) {
				t.Errorf("asked of the engine: %+v", r)
			}
			info, err := e.Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range info.Enforces {
				if slices.Contains(test.want, l) {
					t.Errorf("the engine enforces %q, and %q are unenforced", info.Enforces, test.want)
				}
			}
		})
	}
}

func TestNetworkIsTheDefaultOrNone(t *testing.T) {
	for asked, want := range map[string]container.NetworkMode{"default": "default", "": "default", "none": "none", "host": "", "container:x": ""} {
		f := newFake(t)
		f.creating(func(createBody) string { return "" })
		f.listen(t)
		spec := fakeSpec(1)
		spec.Network = asked
		_, err := f.engine(t, nil).Create(t.Context(), spec)
		if (err != nil) != (want == "") {
			t.Errorf("network %q: %v", asked, err)
		}
		if made := f.created(); want != "" && (len(made) != 1 || made[0].HostConfig.NetworkMode != want) {
			t.Errorf("network %q: asked of the engine: %+v", asked, made)
		}
	}
}

func TestDisksAreBoundedWhereTheEngineCan(t *testing.T) {
	xfs := capable
	xfs.DriverStatus = [][2]string{{"Backing Filesystem", "xfs"}}
	sized := func(b createBody) bool { return b.HostConfig.StorageOpt["size"] != "" }

	t.Run("both the root and the workspace", func(t *testing.T) {
		f := newFake(t)
		f.info = xfs
		f.creating(func(createBody) string { return "" })
		f.listen(t)
		e := f.engine(t, nil)
		created, err := e.Create(t.Context(), fakeSpec(1))
		if err != nil || len(created.Unenforced) != 0 {
			t.Fatalf("%+v, %v", created, err)
		}
		host := f.created()[0].HostConfig
		workspace := host.Mounts[0].VolumeOptions
		if host.StorageOpt["size"] != "100M" || workspace.DriverConfig == nil || workspace.DriverConfig.Options["size"] != "100M" {
			t.Errorf("root %v, workspace %+v", host.StorageOpt, workspace)
		}
	})
	t.Run("a refusal is believed once and for all", func(t *testing.T) {
		f := newFake(t)
		f.info = xfs
		f.creating(func(b createBody) string {
			if sized(b) {
				return "--storage-opt is supported only for overlay over xfs with 'pquota' mount option"
			}
			return ""
		})
		f.listen(t)
		e := f.engine(t, nil)
		for n := range 2 {
			created, err := e.Create(t.Context(), fakeSpec(n))
			if err != nil || !slices.Equal(created.Unenforced, []string{"disk_mb"}) {
				t.Fatalf("%+v, %v", created, err)
			}
			info, err := e.Info(t.Context())
			if err != nil || slices.Contains(info.Enforces, "disk_mb") {
				t.Errorf("%+v, %v", info, err)
			}
		}
		if bodies := f.created(); len(bodies) != 3 || !sized(bodies[0]) || sized(bodies[1]) || sized(bodies[2]) {
			t.Errorf("%d creates were tried", len(bodies))
		}
	})
}

func TestEngineThatDoesNotShareOurFiles(t *testing.T) {
	linked := func(b createBody) string {
		for _, m := range b.HostConfig.Mounts {
			if m.Target == linkTarget {
				return m.Source
			}
		}
		return ""
	}
	build := func(t *testing.T, link string) (*fake, *Engine) {
		f := newFake(t)
		f.creating(func(b createBody) string {
			if dir := linked(b); dir != "" {
				return `invalid mount config for type "bind": bind source path does not exist: ` + dir
			}
			return ""
		})
		f.listen(t)
		return f, f.engine(t, func(o *Options) { o.Link = link })
	}
	t.Run("auto makes do without a link", func(t *testing.T) {
		f, e := build(t, LinkAuto)
		for n := range 2 {
			if _, err := e.Create(t.Context(), fakeSpec(n)); err != nil {
				t.Fatal(err)
			}
		}
		if bodies := f.created(); len(bodies) != 3 || linked(bodies[0]) == "" || linked(bodies[1]) != "" || linked(bodies[2]) != "" {
			t.Errorf("%d creates were tried", len(bodies))
		}
	})
	t.Run("socket says what is wrong", func(t *testing.T) {
		_, e := build(t, LinkSocket)
		if _, err := e.Create(t.Context(), fakeSpec(1)); err == nil || !strings.Contains(err.Error(), "does not share") {
			t.Errorf("create: %v", err)
		}
	})
	t.Run("attach never mounts one", func(t *testing.T) {
		f, e := build(t, LinkAttach)
		if _, err := e.Create(t.Context(), fakeSpec(1)); err != nil {
			t.Fatal(err)
		}
		if bodies := f.created(); len(bodies) != 1 {
			t.Errorf("%d creates were tried", len(bodies))
		}
	})
}

func TestSocketLinkIsRefusedForAnEngineElsewhere(t *testing.T) {
	_, err := New(t.Context(), Options{Instance: "i", Host: Host{Address: "tcp://h:2375", Why: "DOCKER_HOST"}, Link: LinkSocket})
	if err == nil || !strings.Contains(err.Error(), "this machine") {
		t.Errorf("new: %v", err)
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	host := Host{Address: "unix:///x"}
	for name, opts := range map[string]Options{
		"no instance":      {Host: host},
		"a path":           {Host: host, Instance: "../x"},
		"an unknown link":  {Host: host, Instance: "i", Link: "pigeon"},
		"no address":       {Instance: "i"},
		"a missing CA":     {Instance: "i", Host: Host{Address: "tcp://h:1", TLS: &TLS{CA: "/no/such.pem"}}},
		"a broken address": {Instance: "i", Host: Host{Address: "nonsense"}},
	} {
		if _, err := New(t.Context(), opts); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func TestEngineMayComeUpLater(t *testing.T) {
	f := newFake(t)
	e := f.engine(t, nil)
	if _, err := e.Info(t.Context()); !errors.Is(err, control.ErrEngineUnavailable) {
		t.Fatalf("info: %v", err)
	}
	f.listen(t)
	info, err := e.Info(t.Context())
	if err != nil || info.Name != "docker" || info.Version != "27.0" || info.Isolation != "container" {
		t.Errorf("info: %+v, %v", info, err)
	}
}

func TestEngineThatHangsIsUnavailable(t *testing.T) {
	f := newFake(t)
	f.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	f.listen(t)
	e := f.engine(t, func(o *Options) { o.CallTimeout = 20 * time.Millisecond })
	if _, err := e.List(t.Context()); !errors.Is(err, control.ErrEngineUnavailable) {
		t.Errorf("list: %v", err)
	}
	if err := e.Start(t.Context(), "sandkeeper-i-e"); !errors.Is(err, control.ErrEngineUnavailable) || errors.Is(err, control.ErrNoSandbox) {
		t.Errorf("start: %v", err)
	}
}

func TestEngineThatHangsUpIsUnavailable(t *testing.T) {
	f := newFake(t)
	f.HandleFunc("/", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	f.listen(t)
	e := f.engine(t, nil)
	if err := e.Remove(t.Context(), "sandkeeper-i-e", control.RemoveAll); !errors.Is(err, control.ErrEngineUnavailable) {
		t.Errorf("remove: %v", err)
	}
	if err := e.Watch(t.Context(), time.Time{}, nil, nil); !errors.Is(err, control.ErrEngineUnavailable) {
		t.Errorf("watch: %v", err)
	}
	if err := e.Pull(t.Context(), "img"); !errors.Is(err, control.ErrEngineUnavailable) || errors.Is(err, control.ErrImageUnavailable) {
		t.Errorf("pull: %v", err)
	}
}

func TestOnlyNotFoundCountsAsGone(t *testing.T) {
	f := newFake(t)
	f.inspecting(`{"Status":"running","Running":true}`)
	f.HandleFunc("POST /containers/{id}/{verb}", func(w http.ResponseWriter, r *http.Request) { refuse(w, 500, "device busy") })
	f.HandleFunc("DELETE /containers/{id}", func(w http.ResponseWriter, r *http.Request) { refuse(w, 500, "device busy") })
	f.listen(t)
	e := f.engine(t, nil)
	const name = "sandkeeper-i-e"
	for what, err := range map[string]error{
		"start":  e.Start(t.Context(), name),
		"stop":   e.Stop(t.Context(), name),
		"kill":   e.Kill(t.Context(), name),
		"remove": e.Remove(t.Context(), name, control.RemoveAll),
	} {
		if err == nil || !strings.Contains(err.Error(), "device busy") {
			t.Errorf("%s: %v", what, err)
		}
		if errors.Is(err, control.ErrNoSandbox) || errors.Is(err, control.ErrEngineUnavailable) {
			t.Errorf("%s: %v claims to know more", what, err)
		}
	}
}

func TestStartThatLacksSomethingElseIsNotGone(t *testing.T) {
	f := newFake(t)
	f.inspecting(`{"Status":"created"}`)
	f.HandleFunc("POST /containers/{id}/start", func(w http.ResponseWriter, r *http.Request) { refuse(w, 404, "network abc not found") })
	f.listen(t)
	e := f.engine(t, nil)
	err := e.Start(t.Context(), "sandkeeper-i-e")
	if err == nil || errors.Is(err, control.ErrNoSandbox) || !strings.Contains(err.Error(), "network abc not found") {
		t.Errorf("start: %v", err)
	}
}

func TestRemovalInProgressIsWaitedFor(t *testing.T) {
	f := newFake(t)
	f.images()
	f.inspecting(`{"Status":"removing"}`)
	waited := make(chan string, 1)
	f.HandleFunc("DELETE /containers/{id}", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, 409, "removal of container c1 is already in progress")
	})
	f.HandleFunc("POST /containers/{id}/wait", func(w http.ResponseWriter, r *http.Request) {
		waited <- r.URL.Query().Get("condition")
		fmt.Fprint(w, `{"StatusCode":0}`)
	})
	f.listen(t)
	e := f.engine(t, nil)
	if err := e.Remove(t.Context(), "sandkeeper-i-e", control.RemoveAll); err != nil {
		t.Fatal(err)
	}
	if condition := <-waited; condition != "removed" {
		t.Errorf("waited for %q", condition)
	}
}

func TestWatchAsksForWhatItTells(t *testing.T) {
	f := newFake(t)
	asked := make(chan *http.Request, 1)
	f.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		asked <- r
		fmt.Fprint(w, `{"Type":"container","Action":"die","Actor":{"ID":"c1","Attributes":{"name":"n","exitCode":"3","sandkeeper.env":"e"}},"timeNano":5}`)
	})
	f.listen(t)
	e := f.engine(t, nil)
	var got []control.EngineEvent
	err := e.Watch(t.Context(), time.Unix(12, 34), nil, func(ev control.EngineEvent) { got = append(got, ev) })
	if !errors.Is(err, control.ErrEngineUnavailable) {
		t.Errorf("the stream ended with %v", err)
	}
	if want := (control.EngineEvent{Name: "n", Env: "e", Kind: control.SandboxDied, ExitCode: 3, At: time.Unix(0, 5)}); len(got) != 1 || got[0] != want {
		t.Errorf("told %+v, want %+v", got, want)
	}
	query := (<-asked).URL.Query()
	if query.Get("since") != "12.000000034" || !strings.Contains(query.Get("filters"), "sandkeeper.instance=i") {
		t.Errorf("asked for %v", query)
	}
}

func TestPull(t *testing.T) {
	const tooSlow = "did not come in time"
	tests := []struct {
		name   string
		answer func(http.ResponseWriter, *http.Request)
		want   error
		words  string
	}{
		{"comes", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, `{"status":"Pulling"}`)
			fmt.Fprintln(w, `{"status":"Downloaded"}`)
		}, nil, ""},
		{"refused at once", func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, 404, "pull access denied for img, repository does not exist")
		}, control.ErrImageUnavailable, "pull access denied"},
		{"no way to the registry", func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, 500, "Get https://registry/v2/: dial tcp: lookup registry: no such host")
		}, control.ErrImageUnavailable, "no such host"},
		{"fails in its progress", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, `{"status":"Pulling"}`)
			fmt.Fprintln(w, `{"error":"short","errorDetail":{"message":"no space left on device"}}`)
		}, control.ErrImageUnavailable, "no space left on device"},
		{"the engine dies in the middle", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, `{"status":"Pulling"}`)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, control.ErrEngineUnavailable, ""},
		{"too slow a registry", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintln(w, `{"status":"Pulling"}`)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, control.ErrImageUnavailable, tooSlow},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(t)
			auth := make(chan string, 1)
			f.HandleFunc("POST /images/create", func(w http.ResponseWriter, r *http.Request) {
				auth <- r.Header.Get("X-Registry-Auth")
				test.answer(w, r)
			})
			f.listen(t)
			e := f.engine(t, func(o *Options) {
				o.Surroundings = surroundings(map[string]string{"HOME": "/h"},
					map[string]string{"/h/.docker/config.json": `{"auths":{"mine.io":{"username":"me","password":"secret"}}}`})
			})
			patience := time.Minute
			if test.words == tooSlow {
				patience = 2 * time.Second // until then the request has to arrive
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := e.Pull(ctx, "mine.io/img:1")
			if !errors.Is(err, test.want) || test.want == nil && err != nil {
				t.Errorf("pull: %v, want %v", err, test.want)
			}
			if err != nil && !strings.Contains(err.Error(), test.words) {
				t.Errorf("pull: %v, want the words %q", err, test.words)
			}
			shown, err := registry.DecodeAuthConfig(<-auth)
			if err != nil || shown.Username != "me" || shown.Password != "secret" {
				t.Errorf("the registry is shown %+v, %v", shown, err)
			}
		})
	}
	t.Run("a name that is none", func(t *testing.T) {
		f := newFake(t)
		if err := f.engine(t, nil).Pull(t.Context(), "Not A Name"); !errors.Is(err, control.ErrImageUnavailable) {
			t.Errorf("pull: %v", err)
		}
	})
}
