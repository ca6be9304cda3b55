//! Keeps the outputs of earlier attempts that a script would write again under the same names, because its own count of steps
//! begins again.
//!
//! ```text
//! out/net-00010.safetensors ─ copy ─▶ earlier/attempt-1/out/net-00010.safetensors
//! out/net-00010-state       ─ copy ─▶ adopted/, as the checkpoint of its step
//! ```

use super::HarnessArgs;
use super::prepare::{context_of, watch_checkpoints};
use crate::format::{bytes, counted};
use crate::store::adopted::{self, Adopted, epoch_in_name, step_in_name};
use crate::store::disk::free_bytes;
use crate::store::permissions::create_folder;
use crate::untrusted::text;
use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

/// The folder of the copies, in the run directory.
const FOLDER: &str = "earlier";
/// The copies take at most this part of the free space.
const SHARE: u64 = 2;
/// Most paths that a note lists.
const LISTED: usize = 3;

/// Does so before an attempt of a script whose count is known to begin again.
pub(super) fn keep_before(args: &HarnessArgs) -> Option<String> {
    if args.spec.counts_anew() { keep(args) } else { None }
}

/// Copies the checkpoints of earlier attempts, and the files beside them whose names have a number. Returns what is said of it.
pub(super) fn keep(args: &HarnessArgs) -> Option<String> {
    let run_dir = args.run_dir.path();
    let watch = watch_checkpoints(args, &context_of(args, None), &mut Vec::new())?.ok()?;
    let complete = watch.complete();
    let listed = adopted::list(run_dir).into_iter();
    // One that was replaced already is that of another step.
    let is_there =
        |found: &Adopted| found.copy_of.is_none() && complete.contains(&found.path) && found.verify().is_ok();
    let checkpoints: Vec<_> = listed.filter(is_there).collect();
    let begun = began(run_dir)?;
    let folders: BTreeSet<&Path> = complete.iter().filter_map(|path| path.parent()).collect();
    let files: Vec<(PathBuf, Metadata)> = folders.into_iter().flat_map(numbered_files).collect();
    let is_kept = |path: &Path, file: &Metadata| was_kept(run_dir, path, file);
    let is_own = |path: &Path, file: &Metadata| {
        file.modified().is_ok_and(|written| written >= begun) && !complete.iter().any(|checkpoint| checkpoint == path)
    };
    let files: Vec<_> = files.into_iter().filter(|(path, file)| is_own(path, file) && !is_kept(path, file)).collect();
    let sizes = checkpoints.iter().map(Adopted::bytes).chain(files.iter().map(|(_, file)| file.len()));
    let (number, size) = (checkpoints.len() + files.len(), sizes.sum::<u64>());
    if number == 0 {
        return None;
    }
    let again = "the script counts its steps from the beginning again, so it writes files of the same names again";
    let named = checkpoints.iter().map(|found| &found.path).chain(files.iter().map(|(path, _)| path));
    let named = list_paths(named.collect());
    if free_bytes(run_dir).is_ok_and(|free| size > free / SHARE) {
        return Some(format!("{again}. Not copied, since they are too large ({}): {named}", bytes(size)));
    }
    let place = run_dir.join(FOLDER).join(format!("attempt-{}", args.attempt.saturating_sub(1)));
    let copy = |path: &Path| copy_into(&place, path, run_dir).map_err(|error| error.to_string());
    let keep = |found: &Adopted| adopted::copy_listed(run_dir, found).map(drop).map_err(|error| error.to_string());
    let copied = files.iter().map(|(path, _)| (path, copy(path)));
    let failed: Vec<(&PathBuf, String)> = copied
        .chain(checkpoints.iter().map(|found| (&found.path, keep(found))))
        .filter_map(|(path, result)| Some((path, result.err()?)))
        .collect();
    Some(match failed.first() {
        None => {
            let outputs = counted(number as u64, "output");
            format!("{again}: copied {outputs} of earlier attempts to {}", text::path(run_dir))
        }
        Some((_, error)) => {
            let paths = list_paths(failed.iter().map(|(path, _)| *path).collect());
            format!("{again}. Not copied ({error}): {paths}")
        }
    })
}

/// Returns when the run began: the birth of its folder, or where the file system tells none, the time of its oldest file.
fn began(run_dir: &Path) -> Option<SystemTime> {
    let written = || {
        let files = fs::read_dir(run_dir).ok()?.flatten();
        files.filter_map(|file| file.metadata().and_then(|file| file.modified()).ok()).min()
    };
    fs::metadata(run_dir).and_then(|folder| folder.created()).ok().or_else(written)
}

fn list_paths(paths: Vec<&PathBuf>) -> String {
    let more = paths.len().saturating_sub(LISTED);
    let listed: Vec<_> = paths.into_iter().take(LISTED).map(|path| text::path(path)).collect();
    let more = if more > 0 { format!(" and {}", counted(more as u64, "other")) } else { String::new() };
    format!("{}{more}", listed.join(", "))
}

/// Returns the files of a folder whose names have the number of a step or an epoch.
fn numbered_files(folder: &Path) -> Vec<(PathBuf, Metadata)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| Some((entry.path(), entry.metadata().ok().filter(Metadata::is_file)?)));
    files.filter(|(path, _)| step_in_name(path).or(epoch_in_name(path)).is_some()).collect()
}

/// Reports whether an earlier attempt has copied a file as it is now.
fn was_kept(run_dir: &Path, path: &Path, file: &Metadata) -> bool {
    let places = fs::read_dir(run_dir.join(FOLDER)).into_iter().flatten().flatten();
    let name = path_within(path, run_dir);
    let written = file.modified().unwrap_or(SystemTime::now());
    let mut copies = places.filter_map(|place| fs::metadata(place.path().join(&name)).ok());
    copies.any(|copy| copy.len() == file.len() && copy.modified().is_ok_and(|copied| copied >= written))
}

/// Returns where the copy of a file lies within its place. Files of several folders may have one name.
fn path_within(path: &Path, run_dir: &Path) -> PathBuf {
    let path = path.strip_prefix(run_dir).unwrap_or(path);
    path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

fn copy_into(place: &Path, path: &Path, run_dir: &Path) -> io::Result<()> {
    let to = place.join(path_within(path, run_dir));
    let partial = to.with_added_extension("partial");
    create_folder(to.parent().unwrap_or(place))?;
    // Clones on file systems that can.
    fs::copy(path, &partial)?;
    fs::rename(&partial, to)
}

#[cfg(test)]
mod tests {
    use super::{copy_into, numbered_files, was_kept};
    use std::fs;
    use std::path::PathBuf;

    #[test]
    fn a_file_is_copied_once_for_each_of_its_versions() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        fs::create_dir_all(out.join("net-10-state")).unwrap();
        for name in ["net-10.safetensors", "net-epoch2.pt", "net.safetensors"] {
            fs::write(out.join(name), name).unwrap();
        }
        let mut found: Vec<PathBuf> = numbered_files(&out).into_iter().map(|(path, _)| path).collect();
        found.sort();
        assert_eq!(found, [out.join("net-10.safetensors"), out.join("net-epoch2.pt")]);
        let file = || fs::metadata(&found[0]).unwrap();
        assert!(!was_kept(folder.path(), &found[0], &file()));
        let place = folder.path().join("earlier/attempt-1");
        copy_into(&place, &found[0], folder.path()).unwrap();
        assert!(was_kept(folder.path(), &found[0], &file()));
        fs::write(&found[0], "those of the next attempt").unwrap();
        assert!(!was_kept(folder.path(), &found[0], &file()), "another version");
        assert_eq!(fs::read_to_string(place.join("out/net-10.safetensors")).unwrap(), "net-10.safetensors");
    }
}
