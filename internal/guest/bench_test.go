package guest_test

import (
	"fmt"
	"io"
	"os/exec"
	"slices"
	"testing"
	"time"

	"sandkeeper/internal/control"
)

func BenchmarkRoundTrip(b *testing.B) {
	for _, over := range overLinks {
		b.Run(over, func(b *testing.B) {
			s := start(b, over, options{})
			for b.Loop() {
				if err := s.Ping(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// median reports the median of what each iteration took, which the mean hides.
func median(b *testing.B, fn func()) {
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		fn()
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "median-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

func BenchmarkTrue(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		median(b, func() {
			if err := exec.Command("/usr/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		})
	})
	b.Run("bare-bash", func(b *testing.B) {
		median(b, func() {
			if err := exec.Command("/usr/bin/bash", "-c", "true").Run(); err != nil {
				b.Fatal(err)
			}
		})
	})
	for _, over := range overLinks {
		s := start(b, over, options{})
		for name, c := range map[string]control.ExecStart{
			"argv": {Argv: []string{"true"}}, "shell": {Shell: "true"},
		} {
			b.Run(over+"-"+name, func(b *testing.B) {
				n := 0
				median(b, func() {
					n++
					c.Exec = fmt.Sprint(name, b.N, "-", n, time.Now().UnixNano())
					if end := s.do(b, c); end.ExitCode != 0 {
						b.Fatal(end)
					}
				})
			})
		}
	}
}

func BenchmarkOutput(b *testing.B) {
	const size = 64 << 20
	s := start(b, "socket", options{})
	b.SetBytes(size)
	for b.Loop() {
		s.do(b, control.ExecStart{Exec: newName(), Argv: []string{"head", "-c", fmt.Sprint(size), "/dev/zero"}})
	}
}

func BenchmarkFileRead(b *testing.B) {
	for _, over := range overLinks {
		b.Run(over, func(b *testing.B) {
			s := start(b, over, options{})
			const size = 512 << 10
			if _, err := s.WriteFile(b.Context(), control.FileWrite{Path: "f", Data: make([]byte, size)}); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(size)
			for b.Loop() {
				if _, err := s.ReadFile(b.Context(), "f", 0, size); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkIdle reports what a guest keeps resident: before any command, and after a thousand.
func BenchmarkIdle(b *testing.B) {
	s := start(b, "socket", options{})
	fresh := residentKB(b, s.cmd.Process.Pid)
	for b.Loop() {
		s.do(b, control.ExecStart{Exec: newName(), Argv: []string{"true"}})
	}
	b.ReportMetric(float64(fresh), "fresh-KiB")
	b.ReportMetric(float64(residentKB(b, s.cmd.Process.Pid)), "after-KiB")
	for _, pid := range s.keeperPIDs() {
		b.ReportMetric(float64(residentKB(b, pid)), "keeper-KiB")
	}
}

// BenchmarkAttach carries 256 MiB of text to a reader, and reports what the guest
// keeps resident meanwhile.
func BenchmarkAttach(b *testing.B) {
	const size = 256 << 20
	for _, over := range overLinks {
		b.Run(over, func(b *testing.B) {
			s := start(b, over, options{})
			b.SetBytes(size)
			resident := 0
			buf := make([]byte, 64<<10)
			for b.Loop() {
				name := newName()
				s.begin(b, control.ExecStart{Exec: name, StdinOpen: true, Argv: []string{"sh", "-c", fmt.Sprintf("read x; yes 0123456789012345678901234567890 | head -c %d", size)}})
				j, err := s.Attach(b.Context(), control.GuestAttach{Exec: name, Input: true})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := j.Write([]byte("go\n")); err != nil {
					b.Fatal(err)
				}
				got := 0
				for at := 1; ; {
					n, _, err := j.Read(buf)
					got += n
					if err == io.EOF {
						break
					}
					if err != nil {
						b.Fatal(err)
					}
					if got > at*size/8 {
						at++
						resident = max(resident, residentKB(b, s.cmd.Process.Pid))
					}
				}
				j.Close()
				if got != size {
					b.Fatalf("%d bytes of %d", got, size)
				}
			}
			b.ReportMetric(float64(resident), "guest-KiB")
		})
	}
}
