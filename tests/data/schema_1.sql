-- The schema of run.db in its first version (commit 21e736d).
CREATE TABLE IF NOT EXISTS facts (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL                 -- JSON
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS attempts (
    id          INTEGER PRIMARY KEY,    -- counts up from 1
    rung        INTEGER NOT NULL,
    rung_name   TEXT NOT NULL,
    reason      TEXT NOT NULL,
    started_ms  INTEGER NOT NULL,
    pid         INTEGER,
    from_step   INTEGER,
    ended_ms    INTEGER,
    outcome     TEXT                    -- a sentence
);
CREATE TABLE IF NOT EXISTS steps (
    attempt      INTEGER NOT NULL,
    step         INTEGER NOT NULL,
    rung         INTEGER NOT NULL,
    samples      INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    loss         REAL,                  -- NULL where skipped
    lr           REAL NOT NULL,
    grad_norm    REAL,
    skipped      INTEGER NOT NULL,
    data_wait_ms REAL NOT NULL,
    compute_ms   REAL NOT NULL,
    time_ms      INTEGER NOT NULL,
    PRIMARY KEY (attempt, step)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS evals (
    attempt INTEGER NOT NULL,
    step    INTEGER NOT NULL,
    time_ms INTEGER NOT NULL,
    eval    TEXT NOT NULL,              -- JSON
    PRIMARY KEY (attempt, step)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS samples (
    time_ms INTEGER PRIMARY KEY,
    reading TEXT NOT NULL               -- JSON
);
CREATE TABLE IF NOT EXISTS journal (
    id      INTEGER PRIMARY KEY,
    time_ms INTEGER NOT NULL,
    step    INTEGER,
    level   TEXT NOT NULL,
    kind    TEXT NOT NULL,
    text    TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS checkpoints (
    step      INTEGER PRIMARY KEY,
    samples   INTEGER NOT NULL,
    path      TEXT NOT NULL,
    bytes     INTEGER NOT NULL,
    time_ms   INTEGER NOT NULL,
    pause_ms  REAL NOT NULL,
    total_ms  REAL NOT NULL,
    eval_loss REAL,
    best      INTEGER NOT NULL,
    kept      INTEGER NOT NULL
);
PRAGMA user_version = 1;
