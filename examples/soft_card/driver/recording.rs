//! Writes the trace, if one is wanted.

use crate::settings;
use crate::trace::Call;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::LazyLock;

static FILE: LazyLock<Option<File>> = LazyLock::new(|| {
    let path = settings::setting("TRACE")?;
    OpenOptions::new().create(true).append(true).open(path).ok()
});

/// Records a call, which is described only if there is a trace.
pub fn record(describe: impl FnOnce() -> Call) {
    let Some(mut file) = FILE.as_ref() else { return };
    if let Ok(mut line) = serde_json::to_vec(&describe()) {
        line.push(b'\n');
        // One write for each line: other threads and processes add to the same file.
        let _ = file.write_all(&line);
    }
}
