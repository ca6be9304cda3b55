//! Keeps the outputs of earlier attempts that a script would write again under the same names, because its own count of steps
//! begins again.
//!
//! ```text
//! out/net-00010.safetensors ─ copy ─▶ earlier/attempt-1/net-00010.safetensors
//! out/net-00010-state       ─ copy ─▶ adopted/, as the checkpoint of its step
//! ```

use super::HarnessArgs;
use super::prepare::{context_of, watch_checkpoints};
use crate::format::{bytes, counted};
use crate::store::adopted::{self, epoch_in_name, step_in_name};
use crate::store::disk::free_bytes;
use crate::store::permissions::create_folder;
use crate::untrusted::text;
use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
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
    let checkpoints: Vec<_> =
        listed.filter(|adopted| adopted.copy_of.is_none() && complete.contains(&adopted.path)).collect();
    let begun = fs::metadata(run_dir).and_then(|folder| folder.created().or_else(|_| folder.modified())).ok()?;
    let folders: BTreeSet<&Path> = complete.iter().filter_map(|path| path.parent()).collect();
    let files: Vec<(PathBuf, Metadata)> = folders.into_iter().flat_map(numbered_files).collect();
    let is_kept = |path: &Path, file: &Metadata| was_kept(run_dir, path, file);
    let is_own = |path: &Path, file: &Metadata| {
        file.modified().is_ok_and(|written| written >= begun) && !complete.iter().any(|checkpoint| checkpoint == path)
    };
    let files: Vec<_> = files.into_iter().filter(|(path, file)| is_own(path, file) && !is_kept(path, file)).collect();
    let sizes = checkpoints.iter().map(adopted::Adopted::bytes).chain(files.iter().map(|(_, file)| file.len()));
    let (number, size) = (checkpoints.len() + files.len(), sizes.sum::<u64>());
    if number == 0 {
        return None;
    }
    let again = "the script counts its steps from the beginning again, so names of files come again";
    let named = checkpoints.iter().map(|found| &found.path).chain(files.iter().map(|(path, _)| path));
    let named = list_paths(named.collect());
    if free_bytes(run_dir).is_ok_and(|free| size > free / SHARE) {
        return Some(format!("{again}. Too large to be copied ({}), and lost once they do: {named}", bytes(size)));
    }
    let place = run_dir.join(FOLDER).join(format!("attempt-{}", args.attempt.saturating_sub(1)));
    let copied = files.iter().try_for_each(|(path, _)| copy_into(&place, path));
    let kept = checkpoints
        .iter()
        .try_for_each(|found| adopted::adopt_found(run_dir, (found.step, found.samples), &found.path, true).map(drop));
    let failed = copied.err().map(|error| error.to_string()).or(kept.err().map(|error| error.to_string()));
    Some(match failed {
        None => {
            let outputs = counted(number as u64, "output");
            format!("{again}: copied {outputs} of earlier attempts to {}", text::path(run_dir))
        }
        Some(error) => format!("{again}. Not copied ({error}), and lost once they do: {named}"),
    })
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
    let name = path.file_name().unwrap_or_default();
    let written = file.modified().unwrap_or(SystemTime::now());
    let mut copies = places.filter_map(|place| fs::metadata(place.path().join(name)).ok());
    copies.any(|copy| copy.len() == file.len() && copy.modified().is_ok_and(|copied| copied >= written))
}

fn copy_into(place: &Path, path: &Path) -> io::Result<()> {
    create_folder(place)?;
    let name = path.file_name().unwrap_or_default();
    let partial = place.join(format!(".{}", name.to_string_lossy()));
    // Clones on file systems that can.
    fs::copy(path, &partial)?;
    fs::rename(&partial, place.join(name))
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
        copy_into(&place, &found[0]).unwrap();
        assert!(was_kept(folder.path(), &found[0], &file()));
        fs::write(&found[0], "those of the next attempt").unwrap();
        assert!(!was_kept(folder.path(), &found[0], &file()), "another version");
        assert_eq!(fs::read_to_string(place.join("net-10.safetensors")).unwrap(), "net-10.safetensors");
    }
}
