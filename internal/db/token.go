package db

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	bolt "go.etcd.io/bbolt"

	"sandkeeper/internal/control"
)

// TokenSpec is what a new token is to stand for.
type TokenSpec struct {
	Role  control.Role
	Owner string        // of an agent's token; "" for the others
	Name  string        // as shown to operators; "" is the owner, or the role
	TTL   time.Duration // 0: it does not expire
}

// tokenRecord is a token on disk. Of the token itself there is only the
// SHA-256: it is too long to be guessed, so a slow hash would add nothing.
type tokenRecord struct {
	ID      string       `json:"id"`
	Hash    []byte       `json:"hash"`
	Role    control.Role `json:"role"`
	Owner   string       `json:"owner,omitempty"`
	Name    string       `json:"name"`
	Preset  bool         `json:"preset,omitempty"`
	Created time.Time    `json:"created"`
	Expires time.Time    `json:"expires,omitzero"`
}

func (r *tokenRecord) matches(hash [sha256.Size]byte) bool {
	return subtle.ConstantTimeCompare(r.Hash, hash[:]) == 1
}

func (r *tokenRecord) expired(now time.Time) bool {
	return !r.Expires.IsZero() && !now.Before(r.Expires)
}

// tokens are all tokens, in memory too. A token that we made names its record,
// so that one comparison decides; a preset one is compared with each preset, of
// which there is one to a role.
type tokens struct {
	changing sync.Mutex   // held over a change, its commit included
	mu       sync.RWMutex // guards byID
	byID     map[string]*tokenRecord
}

func (t *tokens) load(tx *bolt.Tx) error {
	recs, err := all[*tokenRecord](context.Background(), tx, bucketTokens)
	t.byID = make(map[string]*tokenRecord, len(recs))
	for _, r := range recs {
		t.byID[r.ID] = r
	}
	return err
}

// Authenticate tells whom a token stands for; false for one that is unknown or
// has expired. It reads memory alone, and what time it takes tells nothing
// about the secret part of any token.
func (s *Store) Authenticate(token string) (control.Principal, bool) {
	hash := sha256.Sum256([]byte(token))
	now := time.Now()
	s.tokens.mu.RLock()
	defer s.tokens.mu.RUnlock()
	var found *tokenRecord
	if r, ok := s.tokens.byID[idOf(token)]; ok && r.matches(hash) {
		found = r
	}
	if found == nil {
		found = s.tokens.preset(hash)
	}
	if found == nil || found.expired(now) {
		return control.Principal{}, false
	}
	return control.Principal{Token: found.ID, Name: found.Name, Role: found.Role, Owner: found.Owner}, true
}

// preset finds the preset of a hash. It is called with mu held.
func (t *tokens) preset(hash [sha256.Size]byte) (found *tokenRecord) {
	for _, role := range roles {
		if r, ok := t.byID[presetID(role)]; ok && r.matches(hash) {
			found = r
		}
	}
	return found
}

var roles = []control.Role{control.RoleAgent, control.RoleOperator, control.RoleViewer}

// presetID names the one preset token of a role. No token that we make has such an id.
func presetID(role control.Role) string { return "preset-" + string(role) }

// idOf is the id in a token of the form sk_ROLE_ID_SECRET; "" in any other.
func idOf(token string) string {
	parts := strings.Split(token, "_")
	if len(parts) != 4 || parts[0] != "sk" {
		return ""
	}
	return parts[2]
}

// CreateToken makes a token and returns it, once: it is not kept. Errors are a
// control.Error of KindInvalid, or the disk's.
func (s *Store) CreateToken(ctx context.Context, spec TokenSpec) (token string, err error) {
	if spec.TTL < 0 {
		return "", control.Errorf(control.KindInvalid, "a token's time to live cannot be negative")
	}
	rec, err := newRecord(spec.Role, spec.Owner, spec.Name)
	if err != nil {
		return "", err
	}
	if spec.TTL > 0 {
		rec.Expires = rec.Created.Add(spec.TTL)
	}
	s.tokens.changing.Lock()
	defer s.tokens.changing.Unlock()
	rec.ID = s.tokens.freshID()
	token = fmt.Sprintf("sk_%s_%s_%s", spec.Role, rec.ID, strings.ToLower(rand.Text()))
	hash := sha256.Sum256([]byte(token))
	rec.Hash = hash[:]
	if err := s.putToken(ctx, rec); err != nil {
		return "", err
	}
	return token, nil
}

// PresetToken makes a token that was chosen elsewhere the one preset of its
// role; an earlier preset of the role is no longer taken. It is 1 to 1024
// printable ASCII characters without spaces. The same one for two roles is an error.
func (s *Store) PresetToken(ctx context.Context, role control.Role, owner, token string) error {
	rec, err := newRecord(role, owner, "")
	if err != nil {
		return err
	}
	if !presentable(token) {
		return control.Errorf(control.KindInvalid, "the %s token must be 1 to 1024 printable ASCII characters without spaces", role)
	}
	hash := sha256.Sum256([]byte(token))
	rec.ID, rec.Hash, rec.Preset = presetID(role), hash[:], true
	s.tokens.changing.Lock()
	defer s.tokens.changing.Unlock()
	s.tokens.mu.RLock()
	same := s.tokens.preset(hash)
	s.tokens.mu.RUnlock()
	if same != nil {
		if same.Role != role {
			return control.Errorf(control.KindInvalid, "the %s token and the %s token are the same: choose another for one of them", same.Role, role)
		}
		if same.Owner == owner {
			return nil
		}
	}
	return s.putToken(ctx, rec)
}

// DropPreset makes a role's preset token void; a role that has none is success.
func (s *Store) DropPreset(ctx context.Context, role control.Role) error {
	err := s.DeleteToken(ctx, presetID(role))
	if e, ok := errors.AsType[*control.Error](err); ok && e.Kind == control.KindNotFound {
		return nil
	}
	return err
}

// DeleteToken makes a token void. Errors are a control.Error of KindNotFound, or the disk's.
func (s *Store) DeleteToken(ctx context.Context, id string) error {
	s.tokens.changing.Lock()
	defer s.tokens.changing.Unlock()
	s.tokens.mu.RLock()
	_, ok := s.tokens.byID[id]
	s.tokens.mu.RUnlock()
	if !ok {
		return control.Errorf(control.KindNotFound, "no token has that id")
	}
	return s.deleteTokens(ctx, []string{id})
}

// dropExpiredTokens forgets the tokens that are no longer taken.
func (s *Store) dropExpiredTokens(ctx context.Context) error {
	s.tokens.changing.Lock()
	defer s.tokens.changing.Unlock()
	now := time.Now()
	var ids []string
	s.tokens.mu.RLock()
	for id, r := range s.tokens.byID {
		if r.expired(now) {
			ids = append(ids, id)
		}
	}
	s.tokens.mu.RUnlock()
	if len(ids) == 0 {
		return nil
	}
	return s.deleteTokens(ctx, ids)
}

func (s *Store) putToken(ctx context.Context, rec *tokenRecord) error {
	var enc encoder
	c := change{bucketTokens, enc.key("token", rec.ID), enc.value(rec)}
	if enc.err != nil {
		return enc.err
	}
	return s.submit(ctx, &write{apply: c.apply, durable: func() {
		s.tokens.mu.Lock()
		s.tokens.byID[rec.ID] = rec
		s.tokens.mu.Unlock()
	}})
}

func (s *Store) deleteTokens(ctx context.Context, ids []string) error {
	apply := func(tx *bolt.Tx) error {
		for _, id := range ids {
			if err := tx.Bucket(bucketTokens).Delete([]byte(id)); err != nil {
				return err
			}
		}
		return nil
	}
	return s.submit(ctx, &write{apply: apply, durable: func() {
		s.tokens.mu.Lock()
		for _, id := range ids {
			delete(s.tokens.byID, id)
		}
		s.tokens.mu.Unlock()
	}})
}

// freshID makes an id that no token has. It is called with changing held.
func (t *tokens) freshID() string {
	for {
		id := strings.ToLower(rand.Text()[:10])
		if _, taken := t.byID[id]; !taken {
			return id
		}
	}
}

// newRecord checks what a token is to stand for.
func newRecord(role control.Role, owner, name string) (*tokenRecord, error) {
	switch role {
	case control.RoleAgent:
		if !validName(owner) {
			return nil, control.Errorf(control.KindInvalid, "an agent's token needs an owner: 1 to 128 characters, none of them a control character")
		}
	case control.RoleOperator, control.RoleViewer:
		if owner != "" {
			return nil, control.Errorf(control.KindInvalid, "only an agent's token has an owner")
		}
	default:
		return nil, control.Errorf(control.KindInvalid, "unknown role %q: it is agent, operator or viewer", role)
	}
	if name == "" {
		if name = owner; name == "" {
			name = string(role)
		}
	}
	if !validName(name) {
		return nil, control.Errorf(control.KindInvalid, "a token's name has 1 to 128 characters, none of them a control character")
	}
	return &tokenRecord{Role: role, Owner: owner, Name: name, Created: time.Now()}, nil
}

// validName reports whether a text is 1 to 128 code points of valid UTF-8 without C0 and C1 controls.
func validName(s string) bool {
	if s == "" || !utf8.ValidString(s) || utf8.RuneCountInString(s) > 128 {
		return false
	}
	for _, r := range s {
		if r < 0x20 || r >= 0x7f && r <= 0x9f {
			return false
		}
	}
	return true
}

// presentable reports whether a text can be sent as a bearer token.
func presentable(s string) bool {
	if len(s) < 1 || len(s) > 1024 {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
