//! Reads files from untrusted paths. A pipe would block forever, a device never ends, and a file may
//! be larger than memory: each is refused with an error before a byte is read.

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::SpliceFlags;
use std::fmt;
use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Interval between two looks for the writer of a pipe.
const GLANCE: Duration = Duration::from_millis(50);

/// Size limit for a kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// A file written by hand: a run file, a theme, a keymap, a catalogue.
    Handwritten,
    /// A picture to be shown.
    Picture,
    /// A file written by a program: run.yaml, a manifest, a tokenizer, a shard index.
    Record,
    /// Data and weights, which are loaded into memory.
    Memory,
}

impl Limit {
    /// Returns the limit in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Handwritten => 1 << 20,
            Self::Picture => 32 << 20,
            Self::Record => 128 << 20,
            Self::Memory => host_memory(),
        }
    }
}

/// A path that names something other than a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A folder.
    Folder,
    /// A named pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A device.
    Device,
}

impl FileKind {
    fn of_type(kind: FileType) -> Self {
        if kind.is_dir() {
            Self::Folder
        } else if kind.is_fifo() {
            Self::Pipe
        } else if kind.is_socket() {
            Self::Socket
        } else {
            Self::Device
        }
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Folder => "a folder",
            Self::Pipe => "a pipe",
            Self::Socket => "a socket",
            Self::Device => "a device",
        })
    }
}

/// Reason why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Opening or reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The path names a pipe, a device, a socket or a folder.
    #[error("this is {0}; only a regular file can be read")]
    Kind(FileKind),
    /// The file exceeds the size limit of its kind.
    #[error("the file has {}, above the limit of {}; is it the right file?", crate::format::bytes(*.bytes), crate::format::bytes(.limit.bytes()))]
    TooLarge {
        /// Bytes in the file, as far as known.
        bytes: u64,
        /// The exceeded limit.
        limit: Limit,
    },
    /// The bytes are not UTF-8.
    #[error("line {line} is not UTF-8 text; save the file as UTF-8")]
    NotText {
        /// The first invalid line, counted from 1.
        line: usize,
    },
}

impl ReadError {
    /// Reports whether the file does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => error,
            other => Self::other(other),
        }
    }
}

/// Opens a regular file for reading. Never blocks, not even on a pipe without a writer.
///
/// # Errors
/// Returns an error when the file cannot be opened or is not a regular file.
pub fn open(path: &Path) -> Result<File, ReadError> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let about = file.metadata()?;
    if about.is_file() { Ok(file) } else { Err(ReadError::Kind(FileKind::of_type(about.file_type()))) }
}

/// Opens a file, a pipe or a character device that is read once, from its start to its end; returns its kind unless it is
/// a regular file. Opening never blocks, so a pipe may have no writer yet: [`await_writer`] waits for one.
///
/// # Errors
/// Returns an error when it cannot be opened, or is of another kind.
pub fn open_stream(path: &Path) -> Result<(File, Option<FileKind>), ReadError> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok((file, None));
    }
    if !(kind.is_fifo() || kind.is_char_device()) {
        return Err(ReadError::Kind(FileKind::of_type(kind)));
    }
    rustix::fs::fcntl_setfl(&file, OFlags::empty()).map_err(io::Error::from)?;
    Ok((file, Some(FileKind::of_type(kind))))
}

/// Waits for a process to open a pipe for writing, for at most `limit`. Returns true once there is one, also if it has gone
/// again: what it wrote is still to be read.
///
/// # Errors
/// Returns an error when the pipe cannot be polled.
pub fn await_writer(pipe: &File, limit: Duration) -> io::Result<bool> {
    let end = Instant::now() + limit;
    loop {
        let waits = end.saturating_duration_since(Instant::now()).min(GLANCE);
        let mut polled = [PollFd::new(pipe, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(waits.subsec_nanos()) };
        match rustix::event::poll(&mut polled, Some(&timeout)) {
            // Data, or the end of a writer that came and went.
            Ok(1..) => return Ok(true),
            Ok(0) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if has_silent_writer(pipe)? {
            return Ok(true);
        }
        if Instant::now() >= end {
            return Ok(false);
        }
    }
}

/// Reports whether a pipe without data has a writer.
fn has_silent_writer(pipe: &File) -> io::Result<bool> {
    let (_reader, nowhere) = rustix::pipe::pipe()?;
    // Copying takes nothing from the pipe, and would block only for a writer.
    match rustix::pipe::tee(pipe, &nowhere, 1, SpliceFlags::NONBLOCK) {
        Ok(0) => Ok(false),
        Ok(_) | Err(Errno::AGAIN) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Reads the bytes of a regular file.
///
/// # Errors
/// Returns an error when the file cannot be opened, is not a regular file or is larger than `limit`.
pub fn read(path: &Path, limit: Limit) -> Result<Vec<u8>, ReadError> {
    let file = open(path)?;
    let expected = file.metadata().as_ref().map_or(0, Metadata::len);
    let most = limit.bytes();
    if expected > most {
        return Err(ReadError::TooLarge { bytes: expected, limit });
    }
    let mut bytes = Vec::new();
    bytes.try_reserve(expected as usize).map_err(|_| ReadError::TooLarge { bytes: expected, limit })?;
    // The file may grow while it is read, and kernel files report no length.
    let read = file.take(most.saturating_add(1)).read_to_end(&mut bytes)? as u64;
    if read > most { Err(ReadError::TooLarge { bytes: read, limit }) } else { Ok(bytes) }
}

/// Reads the text of a regular file.
///
/// # Errors
/// Returns the same errors as [`read`], and an error when the text is not UTF-8.
pub fn read_text(path: &Path, limit: Limit) -> Result<String, ReadError> {
    String::from_utf8(read(path, limit)?).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        ReadError::NotText { line: good.split(|byte| *byte == b'\n').count() }
    })
}

/// Reads the last `most` bytes of a regular file as text; replaces invalid UTF-8.
///
/// # Errors
/// Returns the same errors as [`open`].
pub fn tail(path: &Path, most: u64) -> Result<String, ReadError> {
    let mut file = open(path)?;
    let from = file.metadata()?.len().saturating_sub(most);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads the first `most` bytes of a regular file.
///
/// # Errors
/// Returns the same errors as [`open`].
pub fn head(path: &Path, most: u64) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::new();
    open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the bytes of memory in this machine; 64 GiB when the kernel does not report it.
#[must_use]
pub fn host_memory() -> u64 {
    static TOTAL: OnceLock<u64> = OnceLock::new();
    *TOTAL.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kilobytes.map_or(64 << 30, |kilobytes| kilobytes << 10)
    })
}

#[cfg(test)]
mod tests {
    use super::{FileKind, Limit, ReadError, open, read, read_text};
    use std::fs;
    use std::path::Path;

    #[test]
    fn only_regular_files_are_opened_and_nothing_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        for (path, kind) in [
            (pipe.as_path(), FileKind::Pipe),
            (Path::new("/dev/zero"), FileKind::Device),
            (folder.path(), FileKind::Folder),
        ] {
            let error = open(path).unwrap_err();
            assert!(matches!(error, ReadError::Kind(found) if found == kind), "{}: {error}", path.display());
        }
        assert!(open(&folder.path().join("none")).unwrap_err().is_missing());
    }

    #[test]
    fn a_file_above_its_limit_is_refused_unread() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        fs::write(&path, "x").unwrap();
        assert_eq!(read(&path, Limit::Handwritten).unwrap(), b"x");
        // A sparse file: reading it would take a minute and all memory of the machine.
        fs::File::options().write(true).open(&path).unwrap().set_len(1 << 43).unwrap();
        for limit in [Limit::Handwritten, Limit::Picture, Limit::Record, Limit::Memory] {
            let error = read(&path, limit).unwrap_err();
            assert!(error.to_string().starts_with("the file has 8.0 TiB, above the limit of"), "{error}");
        }
    }

    #[test]
    fn files_without_a_length_are_read_to_their_end() {
        assert!(read_text(Path::new("/proc/self/status"), Limit::Handwritten).unwrap().contains("VmRSS"));
    }

    #[test]
    fn text_that_is_not_utf8_is_named_by_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("latin1");
        fs::write(&path, b"a: 1\nb: caf\xe9\n").unwrap();
        assert!(matches!(read_text(&path, Limit::Handwritten), Err(ReadError::NotText { line: 2 })));
    }
}
