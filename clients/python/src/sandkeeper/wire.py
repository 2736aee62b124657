"""What the server tells, in its own form: docs/protocol.md of the server says what each member means.

Times are text, UTC in RFC 3339. A newer server may tell more members.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

State = Literal["starting", "ready", "stopping", "dormant", "failed", "removed"]
Outcome = Literal["done", "failed", "cancelled"]
Stream = Literal["stdout", "stderr"]


class Server(TypedDict):
    name: str
    version: str


class HelloLimits(TypedDict):
    max_frame_bytes: int
    max_execs_per_env: int
    stream_kept_bytes: int


class Hello(TypedDict):
    """What the server says of itself and of the session."""

    session: str
    resumed: bool
    server: Server
    boot: str
    protocol: int
    features: list[str]
    heartbeat_seconds: int
    disconnect_grace_seconds: int
    limits: HelloLimits
    time: str


class Limits(TypedDict, total=False):
    """Bounds of a sandbox. In a request, what is left out keeps what is; else null is no limit."""

    cpus: float | None
    memory_mb: int | None
    pids: int | None
    disk_mb: int | None


class Activity(TypedDict):
    at: str
    kind: str
    actor: str


class Hold(TypedDict):
    """One thing that keeps the idle countdown from running."""

    kind: str
    since: str
    until: NotRequired[str | None]
    ref: NotRequired[str]


class Pin(TypedDict):
    by: str
    reason: str
    since: str
    until: str | None


class Turn(TypedDict):
    number: int
    open: bool
    since: str


class Env(TypedDict):
    """An environment at one instant, the server's `now`."""

    id: str
    owner: str
    task: str
    name: str
    state: State
    generation: int
    persistent: bool
    pinned: bool
    pin: Pin | None
    engine: str
    isolation: str
    image: str | None
    lifetime_seconds: int
    max_age_seconds: int | None
    created_at: str
    last_activity: Activity
    deadline: str | None
    remaining_ms: int | None
    next_action: str | None
    now: str
    holds: list[Hold]
    turn: Turn | None
    workdir: str
    limits: Limits
    unenforced: list[str]
    drift: list[str]
    labels: dict[str, str]
    error: str | None


class Acquired(TypedDict):
    env: Env
    outcome: Literal["created", "reused", "resumed", "recreated"]
    drift: list[str]


class TurnBegan(TypedDict):
    turn: int
    opened: bool


class Decision(TypedDict):
    env: str
    name: str
    decision: Literal["kept", "removed"]
    reason: Literal["pinned", "persistent", "ephemeral"]
    deadline: str | None


class TurnEnded(TypedDict):
    turn: int | None
    stale: NotRequired[bool]
    decisions: list[Decision]


class Notice(TypedDict):
    """What became of the sandbox since the session last used it."""

    generation: int
    lost: list[str]
    kept: list[str]


class Tombstone(TypedDict):
    """How a sandbox, or one run of it, came to its end."""

    reason: str
    actor: str
    at: str
    generation: int
    exit_code: NotRequired[int | None]
    oom: NotRequired[bool]


class EnvLost(TypedDict):
    reason: str
    tombstone: NotRequired[Tombstone | None]


class Exit(TypedDict):
    """The one end of a command. `exit_code` is None with `env_lost`: the environment went first."""

    exec: str
    exit_code: int | None
    signal: NotRequired[str]
    oom: NotRequired[bool]
    timed_out: bool
    env_lost: NotRequired[EnvLost]
    duration_ms: int
    cwd: str
    output_lost: NotRequired[bool]
    left: NotRequired[int]


class Waited(TypedDict):
    """Once `state` is "exited", it has what an Exit has."""

    exec: str
    state: Literal["running", "exited"]
    exit_code: NotRequired[int | None]
    signal: NotRequired[str]
    oom: NotRequired[bool]
    timed_out: NotRequired[bool]
    env_lost: NotRequired[EnvLost]
    duration_ms: NotRequired[int]
    cwd: NotRequired[str]
    output_lost: NotRequired[bool]
    left: NotRequired[int]


class ExecInfo(TypedDict):
    """One line of a list of commands."""

    exec: str
    id: NotRequired[str]
    command: str
    pid: int
    started_at: str
    background: bool
    left: bool
    state: Literal["running", "exited"]
    exit_code: NotRequired[int | None]


class FileInfo(TypedDict):
    name: str
    type: Literal["file", "dir", "symlink", "other"]
    size: int
    mode: int
    mtime: str


class Expiring(TypedDict):
    """The reaper will act on an environment soon."""

    env: str
    deadline: str
    seconds_left: int


class Event(TypedDict):
    seq: int
    time: str
    kind: str
    env: str | None
    owner: str | None
    task: str | None
    name: str | None
    actor: str
    reason: str
    data: dict[str, object]
