//go:build tools

package internal

import (
	_ "github.com/a-h/templ"
	_ "github.com/chromedp/chromedp"
	_ "github.com/docker/docker/client"
	_ "github.com/hashicorp/yamux"
	_ "github.com/labstack/echo/v4"
	_ "github.com/labstack/echo/v4/middleware"
	_ "github.com/spf13/cobra"
	_ "github.com/spf13/viper"
	_ "go.etcd.io/bbolt"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "nhooyr.io/websocket"
	_ "pgregory.net/rapid"
	_ "github.com/distribution/reference"
)
