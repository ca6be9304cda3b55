//! The version of our own kernels. `CubeCL` finds a compiled kernel by its type and shape, not by its source: without this in
//! the name of the cache, a changed kernel would be served as it was.

/// The sources of the kernels that `CubeCL` does not bring.
const OWN_KERNELS: [(&str, &str); 12] = [
    ("activation.rs", include_str!("native/gpu/activation.rs")),
    ("attention.rs", include_str!("native/gpu/attention.rs")),
    ("attention/backward.rs", include_str!("native/gpu/attention/backward.rs")),
    ("attention/forward.rs", include_str!("native/gpu/attention/forward.rs")),
    ("attention/tiles.rs", include_str!("native/gpu/attention/tiles.rs")),
    ("cross_entropy.rs", include_str!("native/gpu/cross_entropy.rs")),
    ("layout.rs", include_str!("native/gpu/layout.rs")),
    ("linear.rs", include_str!("native/gpu/linear.rs")),
    ("norm.rs", include_str!("native/gpu/norm.rs")),
    ("optimizer.rs", include_str!("native/gpu/optimizer.rs")),
    ("softmax.rs", include_str!("native/gpu/softmax.rs")),
    ("sum.rs", include_str!("native/gpu/sum.rs")),
];

/// Returns the version of this build's kernels, for the names of caches.
#[must_use]
pub fn own_kernels_version() -> String {
    let mut hasher = blake3::Hasher::new();
    for (_, source) in OWN_KERNELS {
        hasher.update(source.as_bytes());
    }
    format!("{}-{}", env!("CARGO_PKG_VERSION"), &hasher.finalize().to_hex()[..8])
}

#[cfg(test)]
mod tests {
    use super::OWN_KERNELS;
    use std::fs;
    use std::path::Path;

    #[test]
    fn the_build_covers_every_kernel_of_our_own() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/native/gpu");
        let mut names = Vec::new();
        let mut folders = vec![folder.clone()];
        while let Some(place) = folders.pop() {
            for entry in fs::read_dir(place).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    names.push(path.strip_prefix(&folder).unwrap().display().to_string());
                }
            }
        }
        names.sort();
        assert_eq!(names, OWN_KERNELS.map(|(name, _)| name));
    }
}
