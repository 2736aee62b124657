package dashboard

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"sandkeeper/internal/control"
)

// orphanView is an orphan as the API has it.
type orphanView struct {
	Sandbox string       `json:"sandbox"` // its name on the engine
	Env     string       `json:"env"`
	Owner   string       `json:"owner"`
	Task    string       `json:"task"`
	Name    string       `json:"name"`
	Image   string       `json:"image"` // "" where the engine has no images
	FoundAt control.Time `json:"found_at"`
	Stopped bool         `json:"stopped"`
}

func (d *Dashboard) listOrphans(c echo.Context) error {
	if err := query(c.Request().URL).err; err != nil {
		return err
	}
	return d.orphansLeft(c)
}

func (d *Dashboard) orphansLeft(c echo.Context) error {
	list := []orphanView{}
	for _, o := range d.plane.Orphans() {
		list = append(list, orphanView{o.Name, o.Env, o.Owner, o.Task, o.EnvName, o.Image, control.At(o.FoundAt), o.Stopped})
	}
	return c.JSON(http.StatusOK, map[string]any{"orphans": list})
}

func (d *Dashboard) adoptOrphan(c echo.Context) error {
	if err := d.read(c, &struct{}{}); err != nil {
		return err
	}
	id, _ := who(c)
	v, err := d.plane.AdoptOrphan(c.Request().Context(), id.actor(), c.Param("sandbox"))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, v)
}

func (d *Dashboard) purgeOrphan(c echo.Context) error {
	if err := d.read(c, &struct{}{}); err != nil {
		return err
	}
	id, _ := who(c)
	if err := d.plane.PurgeOrphan(c.Request().Context(), id.actor(), c.Param("sandbox")); err != nil {
		return err
	}
	return d.orphansLeft(c)
}

// adoptForm and purgeForm are the page's buttons.
func (d *Dashboard) adoptForm(c echo.Context) error {
	id, _ := who(c)
	v, err := d.plane.AdoptOrphan(c.Request().Context(), id.actor(), c.Param("sandbox"))
	if err != nil {
		return err
	}
	return back(c, "/#env-"+v.ID)
}

func (d *Dashboard) purgeForm(c echo.Context) error {
	id, _ := who(c)
	if err := d.plane.PurgeOrphan(c.Request().Context(), id.actor(), c.Param("sandbox")); err != nil {
		return err
	}
	return back(c, "/")
}
