// Package docs carries the machine-readable contract: schema.json has each
// message of the agents' socket and each body of the operator API, asyncapi.json
// and openapi.json say where they go. The three are the one source; tests hold
// the server and the Go client against them.
package docs

import _ "embed" // the files below

// Schema is schema.json, a JSON Schema of draft 2020-12.
//
//go:embed schema.json
var Schema []byte

// AsyncAPI is asyncapi.json, of the agents' socket.
//
//go:embed asyncapi.json
var AsyncAPI []byte

// OpenAPI is openapi.json, of the operator API.
//
//go:embed openapi.json
var OpenAPI []byte
