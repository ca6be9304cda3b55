//! The libraries of the soft card, as cargo builds them.

#![cfg(test)]

use std::path::PathBuf;
use std::process::Command;
use std::sync::Once;

/// All tests share one cache of compiled kernels.
pub const CACHE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/soft_card_kernels");

/// Returns the place where cargo puts an example.
pub fn built_library(name: &str) -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples").join(name)
}

/// Builds the libraries if they are missing: a test run that is limited to some tests does not build examples.
pub fn build_libraries() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        if ["libsoft_card_driver.so", "libsoft_card_nvrtc.so"].iter().all(|name| built_library(name).exists()) {
            return;
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--locked", "--example", "soft_card_driver", "--example", "soft_card_nvrtc"]);
        cargo.args(["--no-default-features"].iter().filter(|_| !cfg!(feature = "train")));
        assert!(cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
    });
}
