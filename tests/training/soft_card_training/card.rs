//! Places whose programs find the soft card where they look for NVIDIA's libraries.

use crate::helper::Place;
use crate::libraries::{CACHE, build_libraries, built_library};
use downshift::store::run_dir::RunDir;
use downshift::train::own_kernels::own_kernels_version;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// The shipped digits, one kernel per operation, evaluated at the end only.
pub const PLAIN: [&str; 4] = ["--set", "training.fused_kernels=false", "--set", "evaluation.every=1000 steps"];
/// A transformer with few and small kernels.
pub const TINY: [&str; 14] = [
    "--set",
    "model.width=16",
    "--set",
    "model.layers=1",
    "--set",
    "model.heads=2",
    "--set",
    "model.sequence=16",
    "--set",
    "training.micro_batch=2",
    "--set",
    "training.autotune=minimal",
    "--set",
    "training.fused_kernels=false",
];

/// Returns the seed of this run of the tests: some choose by it among cases that `scripts/campaign card` has in full.
pub fn seed() -> u64 {
    std::env::var("DOWNSHIFT_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(7)
}

/// Returns a place with a card and the caches of a user who has prepared digits: compiled kernels, and tuning decisions
/// for new runs.
pub fn place_with_card() -> Place {
    static ONCE: Once = Once::new();
    let caches = prepared_caches();
    ONCE.call_once(|| {
        let complete = caches.join("complete");
        if !complete.exists() {
            let mut place = place_with_unused_card();
            place.variables.push(("XDG_CACHE_HOME", caches.clone()));
            place.succeed(&["prepare", "digits", "--device", "cuda"]);
            fs::write(complete, "").unwrap();
        }
    });
    let mut place = place_with_unused_card();
    place.variables.push(("XDG_CACHE_HOME", caches));
    place
}

/// Returns the folder of the caches that all tests share: one for each set of dependencies and each build, whose kernels
/// differ, for each form of the PTX, and for each way of marking tuned rungs. CubeCL knows kernels by their types, which
/// differ between checkouts.
fn prepared_caches() -> PathBuf {
    let ptx = include_bytes!("../../../examples/soft_card/ptx.rs");
    let marks = include_bytes!("../../../crates/core/src/store/kernels.rs");
    let folder = env!("CARGO_MANIFEST_DIR").as_bytes();
    let key = blake3::hash(
        &[&include_bytes!("../../../Cargo.lock")[..], ptx, marks, own_kernels_version().as_bytes(), folder].concat(),
    )
    .to_hex();
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("soft_card_prepared-{}", &key[..12]))
}

/// Returns a place with a card for which nothing was compiled or tuned.
pub fn place_with_unused_card() -> Place {
    build_libraries();
    let mut place = Place::real();
    let folder = place.dir.path().join("card");
    fs::create_dir(&folder).unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        symlink(built_library("libsoft_card_driver.so"), folder.join(name)).unwrap();
    }
    symlink(built_library("libsoft_card_nvrtc.so"), folder.join("libnvrtc.so")).unwrap();
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/soft_card");
    let variables = [("LD_LIBRARY_PATH", folder), ("CUDA_PATH", headers), ("SOFT_CARD_CACHE", PathBuf::from(CACHE))];
    place.variables.extend(variables);
    place.variables.push(("SOFT_CARD_FAULTS", place.dir.path().join("faults.json")));
    set_faults(&place, "[]");
    place
}

/// Replaces the faults of the card, also for a process that runs.
pub fn set_faults(place: &Place, faults: &str) {
    let path = place.dir.path().join("faults.json");
    // The soft card leaves this file when a process has played a fault marked `once`.
    let _ = fs::remove_file(place.dir.path().join("faults.json.played-0"));
    fs::write(path.with_extension("new"), faults).unwrap();
    fs::rename(path.with_extension("new"), path).unwrap();
}

/// Returns the words that train 8 steps of plain digits on the card, with a checkpoint after 4.
pub fn eight_steps() -> Vec<&'static str> {
    let words = ["run", "digits", "--headless", "--device", "cuda", "--set", "training.steps=8"];
    words.into_iter().chain(PLAIN).chain(["--set", "checkpoint.every=4 steps"]).collect()
}

/// Trains eight steps with these faults, to the end, and returns the run.
pub fn run_with_faults(place: &Place, faults: &str) -> RunDir {
    set_faults(place, faults);
    place.succeed(&eight_steps());
    place.newest().unwrap()
}
