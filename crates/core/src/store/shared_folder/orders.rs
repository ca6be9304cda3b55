//! Orders to a keeper on another host: the requests and replies of its socket, as files.
//!
//! ```text
//!  client                                   keeper
//!  ID.json ── written aside, renamed ─────▶ ID.taken: from here on it cannot be withdrawn
//!                                           owner and mode checked; obeyed, and noted in run.db in the same step
//!  ID.answer ◀── rewritten for each reply ─ answered; ID.taken is removed after the first reply
//!  (removed when read)
//! ```

use super::{host_name, refresh};
use crate::protocol::control::Request;
use crate::store::file_system::FileSystem;
use crate::store::identity::boot_id;
use crate::store::run_dir::write_whole;
use crate::untrusted::file::{self, Limit};
use crate::untrusted::text;
use rustix::process::getuid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Name of the folder.
const FOLDER: &str = "requests";
/// Age at which an order is too old to be meant, and an answer too old to be fetched. The client of an order gives up sooner.
const OLD: Duration = Duration::from_secs(30);
const OLD_ANSWER: Duration = Duration::from_mins(10);
/// Most orders that are read at once.
const MOST: usize = 64;

/// An order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The boot of the host whose keeper is meant: a later keeper elsewhere does not obey it.
    pub to: String,
    /// Who gives it, in words.
    pub by: String,
    /// The request, as on the socket.
    pub request: Request,
}

/// Reason why a file is no order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Another user made it.
    #[error("{0} belongs to user {1}, who may not give orders to this run; it was removed")]
    Foreign(String, u32),
    /// Others can write it.
    #[error("{0} can be changed by other users (mode {1:o}), so it was not obeyed but removed")]
    Writable(String, u32),
    /// It cannot be read as an order of this version.
    #[error("{0} is no order: {1}; it was removed")]
    Garbled(String, String),
    /// It has been there for too long.
    #[error("{0} is {1} s old, so it was not obeyed; ask again")]
    Old(String, u64),
    /// It is meant for a keeper on another host.
    #[error("{0} is meant for an earlier keeper on another host, so it was not obeyed; ask again")]
    OtherKeeper(String),
}

/// A file of the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundOrder {
    /// The name of the order.
    pub id: String,
    /// The order, or why it is none.
    pub order: Result<Order, Refused>,
}

/// The keeper's side of the folder.
#[derive(Debug)]
pub struct Inbox {
    folder: PathBuf,
    /// Whether owners and modes of files can be trusted.
    modes_count: bool,
    /// Orders that were handed over, whose files are still there.
    known: BTreeSet<String>,
}

impl Inbox {
    /// Opens the folder of a run, and creates it if it is missing.
    ///
    /// # Errors
    /// Returns an error when it cannot be made, or others can give orders there.
    pub fn open(run: &Path) -> io::Result<Self> {
        let folder = run.join(FOLDER);
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let inbox = Self { modes_count: FileSystem::of(&folder).keeps_permissions(), folder, known: BTreeSet::new() };
        inbox.check_folder()?;
        Ok(inbox)
    }

    fn check_folder(&self) -> io::Result<()> {
        let about = fs::symlink_metadata(&self.folder)?;
        let shown = text::path(&self.folder);
        if !about.is_dir() {
            return Err(io::Error::other(format!("{shown} is a symbolic link or not a folder; remove it")));
        }
        if self.modes_count && about.uid() != getuid().as_raw() {
            let owner = about.uid();
            return Err(io::Error::other(format!("{shown} belongs to user {owner}, so no orders are read; remove it")));
        }
        if self.modes_count && about.mode() & 0o077 != 0 {
            let mode = about.mode() & 0o7777;
            let text = format!("{shown} is open to others (mode {mode:o}), so no orders are read; `chmod 700` it");
            return Err(io::Error::other(text));
        }
        Ok(())
    }

    /// Returns the orders that have arrived since the last call, oldest first, and removes what is none.
    ///
    /// # Errors
    /// Returns an error when the folder cannot be read, or others can give orders there.
    pub fn read(&mut self) -> io::Result<Vec<FoundOrder>> {
        self.check_folder()?;
        let now = refresh(&self.folder)?;
        let (mut ids, mut leftovers) = (BTreeSet::new(), Vec::new());
        for entry in fs::read_dir(&self.folder)?.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            match name.rsplit_once('.') {
                // A keeper that was killed leaves orders that it had taken.
                Some((id, "json" | "taken")) if is_id(id) => drop(ids.insert(id.to_owned())),
                Some((_, "answer")) => leftovers.push(entry.path()),
                // Half of an answer, from a keeper that was killed while it wrote.
                Some(_) if name.starts_with('.') => leftovers.push(entry.path()),
                _ => {}
            }
        }
        self.known.retain(|id| ids.contains(id));
        let news: Vec<String> = ids.into_iter().filter(|id| !self.known.contains(id)).take(MOST).collect();
        let found = news.into_iter().map(|id| FoundOrder { order: self.read_order(&id, now), id }).collect::<Vec<_>>();
        self.known.extend(found.iter().map(|found| found.id.clone()));
        let age = |path: &PathBuf| now.duration_since(fs::symlink_metadata(path).ok()?.modified().ok()?).ok();
        leftovers.retain(|path| age(path).is_some_and(|age| age > OLD_ANSWER));
        for path in leftovers {
            fs::remove_file(path).ok();
        }
        Ok(found)
    }

    fn read_order(&self, id: &str, now: SystemTime) -> Result<Order, Refused> {
        let (placed, path) = (self.folder.join(format!("{id}.json")), self.taken(id));
        let shown = || format!("requests/{id}.json");
        let garbled = |why: String| Refused::Garbled(shown(), why);
        match fs::rename(placed, &path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(garbled(error.to_string())),
            _ => {}
        }
        let about = fs::symlink_metadata(&path).map_err(|error| garbled(error.to_string()))?;
        if self.modes_count {
            check_author(&about, getuid().as_raw(), &shown())?;
        }
        let content = file::read_text(&path, Limit::Handwritten).map_err(|error| garbled(error.to_string()))?;
        let order: Order = serde_json::from_str(&content).map_err(|error| garbled(error.to_string()))?;
        if order.to != boot_id() {
            return Err(Refused::OtherKeeper(shown()));
        }
        // Both times are the file server's.
        let age = about.modified().ok().and_then(|made| now.duration_since(made).ok()).unwrap_or_default();
        if age > OLD { Err(Refused::Old(shown(), age.as_secs())) } else { Ok(order) }
    }

    /// Answers an order with all replies so far, and removes the order.
    ///
    /// # Errors
    /// Returns the system's error; then the order is still there.
    pub fn answer(&self, id: &str, lines: &str) -> io::Result<()> {
        write_whole(&self.folder.join(format!("{id}.answer")), lines.as_bytes())?;
        match fs::remove_file(self.taken(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Reports whether the client of an answered order has left: it removes the answer then.
    #[must_use]
    pub fn has_left(&self, id: &str) -> bool {
        matches!(self.folder.join(format!("{id}.answer")).try_exists(), Ok(false))
    }

    fn taken(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.taken"))
    }
}

fn check_author(about: &Metadata, user: u32, shown: &str) -> Result<(), Refused> {
    if about.uid() != user {
        return Err(Refused::Foreign(shown.to_owned(), about.uid()));
    }
    match about.mode() & 0o7777 {
        mode if mode & 0o022 != 0 => Err(Refused::Writable(shown.to_owned(), mode)),
        _ => Ok(()),
    }
}

/// Ids become file names.
fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= 200 && !id.starts_with('.') && !id.contains('/')
}

/// An order that waits for its replies. Withdrawn when it is dropped.
#[derive(Debug)]
pub struct Placed {
    folder: PathBuf,
    id: String,
    /// Bytes of the answer that were read.
    read: usize,
}

/// Places an order in the folder of a run.
///
/// # Errors
/// Returns the system's error, also when the keeper has made no folder for orders.
pub fn place(run: &Path, order: &Order) -> io::Result<Placed> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let folder = run.join(FOLDER);
    refresh(&folder)?;
    let (now, count) = (jiff::Timestamp::now().as_millisecond(), COUNT.fetch_add(1, Ordering::Relaxed));
    let host: String = host_name().chars().filter(|letter| letter.is_ascii_alphanumeric() || *letter == '-').collect();
    // In the order of time for one client; hosts are told apart by name.
    let id = format!("{now:014}-{count:06}-{host}-{}", std::process::id());
    let placed = Placed { folder, id, read: 0 };
    write_whole(&placed.order(), &serde_json::to_vec(order)?)?;
    Ok(placed)
}

impl Placed {
    fn order(&self) -> PathBuf {
        self.folder.join(format!("{}.json", self.id))
    }

    fn answer(&self) -> PathBuf {
        self.folder.join(format!("{}.answer", self.id))
    }

    /// Returns the replies that have come since the last call, as lines.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn news(&mut self) -> io::Result<Vec<String>> {
        refresh(&self.folder)?;
        let content = match file::read_text(&self.answer(), Limit::Handwritten) {
            Err(error) if error.is_missing() => return Ok(Vec::new()),
            read => read?,
        };
        let lines = content.get(self.read..).unwrap_or_default().lines().map(str::to_owned).collect();
        self.read = content.len();
        Ok(lines)
    }

    /// Takes the order back. Returns false if the keeper has taken it already, and will answer.
    pub fn withdraw(&self) -> bool {
        fs::remove_file(self.order()).is_ok()
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        for path in [self.order(), self.answer()] {
            fs::remove_file(path).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FOLDER, FoundOrder, Inbox, OLD, OLD_ANSWER, Order, Refused, check_author, place};
    use crate::protocol::control::Request;
    use crate::store::identity::boot_id;
    use std::collections::BTreeSet;
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::time::{Duration, SystemTime};

    fn order(request: Request) -> Order {
        Order { to: boot_id(), by: "you".to_owned(), request }
    }

    #[test]
    fn orders_are_read_once_in_their_order_and_answered_line_by_line() {
        let dir = tempfile::tempdir().unwrap();
        assert!(place(dir.path(), &order(Request::Pause)).is_err(), "no keeper reads there");
        let mut inbox = Inbox::open(dir.path()).unwrap();
        let requests = [Request::Pause, Request::Resume, Request::Stop];
        let mut placed = requests.clone().map(|request| place(dir.path(), &order(request)).unwrap());
        let found = inbox.read().unwrap();
        let read: Vec<_> = found.iter().map(|found| found.order.clone().unwrap().request).collect();
        assert_eq!(read, requests);
        assert_eq!(inbox.read().unwrap(), [], "handed over once");
        assert_eq!(placed[0].news().unwrap(), Vec::<String>::new());
        assert!(!placed[0].withdraw(), "it was taken");
        inbox.answer(&found[0].id, "first\n").unwrap();
        assert_eq!(placed[0].news().unwrap(), ["first"]);
        inbox.answer(&found[0].id, "first\nsecond\n").unwrap();
        assert_eq!((placed[0].news().unwrap(), placed[0].news().unwrap()), (vec!["second".to_owned()], Vec::new()));
        let again = Inbox::open(dir.path()).unwrap().read().unwrap();
        assert_eq!(again, found[1..], "what a killed keeper had taken is read by the next one");
        for found in &found[1..] {
            inbox.answer(&found.id, "late\n").unwrap();
        }
        assert_eq!(inbox.read().unwrap(), []);
        let withdrawn = place(dir.path(), &order(Request::Stop)).unwrap();
        assert!(withdrawn.withdraw());
        drop((placed, withdrawn));
        assert_eq!(fs::read_dir(dir.path().join(FOLDER)).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn what_is_no_order_of_the_user_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut inbox = Inbox::open(dir.path()).unwrap();
        let file = |name: &str| dir.path().join(FOLDER).join(name);
        let late = place(dir.path(), &order(Request::Stop)).unwrap();
        let past = SystemTime::now().checked_sub(OLD + Duration::from_secs(2)).unwrap();
        File::options().write(true).open(late.order()).unwrap().set_modified(past).unwrap();
        let other = place(dir.path(), &Order { to: "another boot".to_owned(), ..order(Request::Stop) }).unwrap();
        fs::write(file("a.json"), "{").unwrap();
        fs::write(file("b.json"), serde_json::to_string(&order(Request::Stop)).unwrap()).unwrap();
        fs::set_permissions(file("b.json"), Permissions::from_mode(0o666)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", file("c.json")).unwrap();
        fs::write(file(".d.json.1"), "half an ord").unwrap();
        let found = inbox.read().unwrap();
        let of = |id: &str| found.iter().find(|found| found.id == id).unwrap().order.clone().unwrap_err();
        assert_eq!(found.len(), 5);
        assert!(matches!(of(&late.id), Refused::Old(_, 32..)), "{:?}", of(&late.id));
        assert!(matches!(of(&other.id), Refused::OtherKeeper(_)));
        assert!(matches!(of("a"), Refused::Garbled(..)));
        assert_eq!(of("b"), Refused::Writable("requests/b.json".to_owned(), 0o666));
        assert!(matches!(of("c"), Refused::Garbled(..) | Refused::Writable(..)), "a link is not followed");
        let about = fs::metadata(inbox.taken(&late.id)).unwrap();
        let foreign = check_author(&about, about.uid() + 1, "requests/x.json").unwrap_err();
        assert!(foreign.to_string().starts_with("requests/x.json belongs to user "), "{foreign}");
    }

    #[test]
    fn what_nobody_fetched_and_what_a_killed_keeper_left_is_removed_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut inbox = Inbox::open(dir.path()).unwrap();
        let folder = dir.path().join(FOLDER);
        let past = SystemTime::now().checked_sub(OLD_ANSWER + Duration::from_secs(2)).unwrap();
        for (name, is_old) in [("a.answer", true), (".b.answer.7", true), ("c.answer", false), (".d.answer.8", false)] {
            let file = File::create(folder.join(name)).unwrap();
            if is_old {
                file.set_modified(past).unwrap();
            }
        }
        assert_eq!(inbox.read().unwrap(), []);
        let left: BTreeSet<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, BTreeSet::from([".d.answer.8".into(), "c.answer".into()]));
    }

    #[test]
    fn a_folder_that_others_can_reach_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut inbox = Inbox::open(dir.path()).unwrap();
        let _placed = place(dir.path(), &order(Request::Stop)).unwrap();
        let folder = dir.path().join(FOLDER);
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        let refused = inbox.read().unwrap_err().to_string();
        assert!(
            refused.contains("requests is open to others (mode 755)") && refused.contains("`chmod 700`"),
            "{refused}"
        );
        fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        assert!(matches!(&inbox.read().unwrap()[..], [FoundOrder { order: Ok(_), .. }]));
        fs::remove_dir_all(&folder).unwrap();
        std::os::unix::fs::symlink("/tmp", &folder).unwrap();
        assert!(Inbox::open(dir.path()).unwrap_err().to_string().contains("is a symbolic link"));
    }
}
