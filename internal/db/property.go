package db

import (
	"context"

	bolt "go.etcd.io/bbolt"
)

// Property reads a text that belongs to the data, such as the instance's name;
// ok is false where it was never set.
func (s *Store) Property(name string) (value string, ok bool, err error) {
	err = s.read(func(tx *bolt.Tx) error {
		v := tx.Bucket(bucketProperties).Get([]byte(name))
		value, ok = string(v), v != nil
		return nil
	})
	return value, ok, err
}

// SetProperty keeps a text with the data.
func (s *Store) SetProperty(ctx context.Context, name, value string) error {
	var enc encoder
	key := enc.key("property", name)
	if enc.err != nil {
		return enc.err
	}
	return s.submit(ctx, &write{apply: change{bucketProperties, key, append([]byte{}, value...)}.apply})
}
