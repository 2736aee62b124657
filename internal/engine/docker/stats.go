package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/docker/docker/api/types/container"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine"
)

// Stats reads what a running sandbox uses now.
func (e *Engine) Stats(ctx context.Context, name string) (engine.Stats, error) {
	ctx, cancel := e.quick(ctx)
	defer cancel()
	var read container.StatsResponse
	err := e.on(ctx, name, func(s *sandbox) error {
		answer, err := e.api.client(ctx).ContainerStatsOneShot(ctx, s.id)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		return json.NewDecoder(answer.Body).Decode(&read)
	})
	if err != nil {
		return engine.Stats{}, fault("container stats", err)
	}
	if read.PidsStats.Current == 0 && read.CPUStats.CPUUsage.TotalUsage == 0 {
		return engine.Stats{}, fmt.Errorf("container stats: %s does not run: %w", name, control.ErrNoSandbox)
	}
	return statsOf(read), nil
}

func statsOf(read container.StatsResponse) engine.Stats {
	memory := read.MemoryStats.Usage
	// The page cache that was not used lately goes first when memory is short.
	// cgroup v1 and v2 name it differently.
	for _, key := range []string{"total_inactive_file", "inactive_file"} {
		if cache, ok := read.MemoryStats.Stats[key]; ok {
			memory -= min(cache, memory)
			break
		}
	}
	return engine.Stats{
		CPU:    time.Duration(read.CPUStats.CPUUsage.TotalUsage),
		Memory: int64(memory),
		Pids:   int64(read.PidsStats.Current),
	}
}
