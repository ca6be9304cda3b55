//! Copies a checkpoint to a second place. The copy is a complete run directory with run.yaml: `downshift
//! resume DIR/RUN` continues from it if the first place is lost.

use super::CheckpointsArgs;
use crate::cli::{Failure, Outcome, line};
use crate::format::{bytes, count};
use crate::store::adopted::{self, Adopted};
use crate::store::checkpoint::{self, Contents, Loaded};
use crate::store::companion::KnownCompanion;
use crate::store::disk;
use crate::store::run_dir::{RunDir, write_whole};
use crate::untrusted::file::{self, Limit};
use crate::untrusted::text;
use std::fs;
use std::path::{Path, PathBuf};

/// Copies the best or the requested checkpoint, and verifies the copy.
pub fn copy(run: &RunDir, args: &CheckpointsArgs) -> Outcome {
    let to = args.to.as_deref();
    let to = to.ok_or_else(|| Failure::new(2, "copy needs a target folder: --to /mnt/backup"))?;
    let best = if args.step.is_none() { super::best_step(run)? } else { None };
    let wanted = args.step.or(best);
    let (path, step, size) = match find_adopted(run, wanted)? {
        Some(adopted) => {
            adopted.verify_every_byte().map_err(Failure::checkpoint)?;
            let place = prepare_place(run, to, adopted.bytes())?;
            let copied = adopted::adopt_copy(&place, adopted.step, adopted.samples, &adopted.path);
            let copied = copied.map_err(|error| Failure::new(1, error.to_string()))?;
            copied.verify_every_byte().map_err(|error| Failure::new(1, format!("the copy did not verify: {error}")))?;
            (copied.path, adopted.step, adopted.bytes())
        }
        None => copy_container(run, to, &super::load_chosen(run, wanted)?)?,
    };
    let which = if best.is_some() { "the best one, " } else { "" };
    line!("copied {which}step {} to {}, {}, verified", count(step), text::path(&path), bytes(size));
    Ok(0)
}

/// Returns the checkpoint that the command of a run wrote: of a step, or the newest usable one. Of one that is not of a
/// command, or a container of the companion, returns none.
fn find_adopted(run: &RunDir, wanted: Option<u64>) -> Result<Option<Adopted>, Failure> {
    if adopted::list(run.path()).is_empty() {
        return Ok(None);
    }
    let Some(step) = wanted else { return Ok(adopted::newest_usable(run.path()).0) };
    let found = adopted::find(run.path(), step);
    let is_container = || checkpoint::list(run.path()).iter().any(|entry| entry.step == step);
    if found.is_none() && !is_container() {
        return Err(Failure::checkpoint(format!("{} has no checkpoint of step {}", run.name(), count(step))));
    }
    Ok(found)
}

fn copy_container(run: &RunDir, to: &Path, loaded: &Loaded) -> Result<(PathBuf, u64, u64), Failure> {
    let place = prepare_place(run, to, loaded.manifest.bytes())?;
    let path = place.join(write_copy(&place, loaded, &[])?);
    match checkpoint::verify(&path) {
        Ok(manifest) if manifest == loaded.manifest => Ok((path, manifest.step, manifest.bytes())),
        Ok(_) => Err(Failure::new(1, format!("{} differs from the checkpoint that was copied", text::path(&path)))),
        Err(error) => Err(Failure::new(1, format!("the copy did not verify: {error}"))),
    }
}

/// Creates the run directory of the copy in a folder with room for it.
fn prepare_place(run: &RunDir, to: &Path, size: u64) -> Result<PathBuf, Failure> {
    let place = to.join(run.name());
    let wrong = |error: std::io::Error| Failure::new(1, format!("{}: {error}", text::path(&place)));
    let whole = to.canonicalize().or_else(|_| std::path::absolute(to)).map_err(wrong)?;
    if whole.starts_with(run.path()) {
        return Err(Failure::new(2, format!("{} is inside the run; choose another folder with --to", text::path(to))));
    }
    disk::has_room_to_save(to, size).map_err(|shortage| {
        Failure::new(1, format!("{shortage} for the copy; free some space, or choose another folder with --to"))
    })?;
    fs::create_dir_all(&place).map_err(wrong)?;
    if place.canonicalize().map_err(wrong)? == run.path() {
        return Err(Failure::new(
            2,
            format!("{} is the run directory; choose another folder with --to", text::path(&place)),
        ));
    }
    write_whole(&place.join("run.yaml"), &file::read(&run.file("run.yaml"), Limit::Record)?).map_err(wrong)?;
    // Without it, the copy would not be known to resume.
    KnownCompanion::copy(run, &place).map_err(wrong)?;
    fs::File::open(to).and_then(|folder| folder.sync_all()).map_err(wrong)?;
    // A list of files names them by their whole path.
    place.canonicalize().map_err(wrong)
}

/// Writes a checkpoint into a run directory: the same files in the same order, so that the manifest is identical unless
/// some of them, by name, are replaced.
pub fn write_copy(place: &Path, loaded: &Loaded, replaced: &[(&str, &[u8])]) -> Result<String, Failure> {
    let manifest = &loaded.manifest;
    let kept = |name: &str| loaded.files.get(name).map_or(&[][..], Vec::as_slice);
    let file = |name: &str| replaced.iter().find(|(other, _)| *other == name).map_or_else(|| kept(name), |it| it.1);
    let files: Vec<(&str, &[u8])> =
        manifest.files.iter().map(|entry| (entry.name.as_str(), file(&entry.name))).collect();
    let contents = Contents { step: manifest.step, samples: manifest.samples, build: &manifest.build, files: &files };
    Ok(checkpoint::write(place, &contents)?.path)
}
