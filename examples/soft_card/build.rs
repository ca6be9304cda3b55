//! Compiles C++ to a shared library with g++, once for each content.

use super::rewrite::rewrite_kernel;
use super::settings;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU64, Ordering};

const HEADERS: [(&str, &str); 17] = [
    ("cuda_runtime.h", include_str!("include/cuda_runtime.h")),
    ("cuda_fp16.h", include_str!("include/cuda_fp16.h")),
    ("cuda_bf16.h", include_str!("include/cuda_bf16.h")),
    ("mma.h", include_str!("include/mma.h")),
    ("crt/mma.h", include_str!("include/crt/mma.h")),
    ("cooperative_groups.h", include_str!("include/cooperative_groups.h")),
    ("cooperative_groups/memcpy_async.h", include_str!("include/cooperative_groups/memcpy_async.h")),
    ("cuda/barrier", include_str!("include/cuda/barrier")),
    ("cuda/pipeline", include_str!("include/cuda/pipeline")),
    ("soft_card/language.h", include_str!("include/soft_card/language.h")),
    ("soft_card/place.h", include_str!("include/soft_card/place.h")),
    ("soft_card/warp.h", include_str!("include/soft_card/warp.h")),
    ("soft_card/arithmetic.h", include_str!("include/soft_card/arithmetic.h")),
    ("soft_card/atomics.h", include_str!("include/soft_card/atomics.h")),
    ("soft_card/ptx.h", include_str!("include/soft_card/ptx.h")),
    ("soft_card/entry.h", include_str!("include/soft_card/entry.h")),
    ("soft_card/float16.h", include_str!("include/soft_card/float16.h")),
];

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("the soft card compiles kernels with {compiler}, which is not installed: install the package g++")]
    NoCompiler { compiler: String },
    #[error("cannot compile a kernel in {}: {error}", folder.display())]
    Files { folder: PathBuf, error: io::Error },
    #[error("the soft card cannot compile this kernel ({}):\n{log}", source_file.display())]
    Refused { source_file: PathBuf, log: String },
}

/// Numbers the files of this process.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Returns the C++ of a kernel's CUDA C++ for this compute capability.
pub fn kernel_text(source: &str, (major, minor): (i32, i32)) -> String {
    format!("#define __CUDA_ARCH__ {}\n{}", major * 100 + minor * 10, rewrite_kernel(source))
}

/// Returns the shared library of this C++, compiled now unless the cache has it.
pub fn compile_cached(text: &str) -> Result<PathBuf, BuildError> {
    let folder = settings::cache();
    let files = |error| BuildError::Files { folder: folder.clone(), error };
    let flags = flags();
    let key = digest(HEADERS.iter().flat_map(|(name, text)| [*name, *text]).chain([flags.as_str(), text]));
    let library = folder.join(format!("{key}.so"));
    if library.exists() {
        return Ok(library);
    }
    fs::create_dir_all(&folder).map_err(files)?;
    // One process compiles, the others wait for it.
    let lock = File::create(folder.join(format!("{key}.lock"))).map_err(files)?;
    lock.lock().map_err(files)?;
    if library.exists() {
        return Ok(library);
    }
    let headers = write_headers(&folder).map_err(files)?;
    let unique = format!("{key}.{}.{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let (source_file, output) = (folder.join(format!("{unique}.cpp")), folder.join(format!("{unique}.tmp")));
    fs::write(&source_file, text).map_err(files)?;
    compile(&source_file, &output, &headers, &flags)?;
    // Other processes see a complete library or none.
    fs::rename(&output, &library).map_err(files)?;
    let _ = fs::remove_file(&source_file);
    Ok(library)
}

fn flags() -> String {
    let chosen = settings::setting("CXXFLAGS").unwrap_or_else(|| "-O2".to_owned());
    #[cfg(target_arch = "x86_64")]
    let machine = if is_x86_feature_detected!("avx2") { " -march=x86-64-v3" } else { "" };
    #[cfg(not(target_arch = "x86_64"))]
    let machine = "";
    format!("{chosen}{machine} -ffp-contract=fast")
}

fn compile(source_file: &Path, output: &Path, headers: &Path, flags: &str) -> Result<(), BuildError> {
    let compiler = settings::setting("CXX").unwrap_or_else(|| "g++".to_owned());
    let mut command = Command::new(&compiler);
    command.args(["-std=gnu++17", "-w", "-fpermissive", "-fPIC", "-shared", "-fno-exceptions", "-fno-rtti"]);
    command.args(["-fno-strict-aliasing", "-fvisibility=hidden"]).args(flags.split_whitespace());
    command.arg("-I").arg(headers).arg(source_file).arg("-o").arg(output).arg("-lm");
    // With the soft card's folder on this path, the compiler would load its own libraries from there.
    command.env_remove("LD_LIBRARY_PATH").env("LC_ALL", "C");
    match command.output() {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => {
            let log = String::from_utf8_lossy(&done.stderr).into_owned();
            Err(BuildError::Refused { source_file: source_file.to_owned(), log })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(BuildError::NoCompiler { compiler }),
        Err(error) => Err(BuildError::Files { folder: source_file.to_owned(), error }),
    }
}

/// Writes the headers to a folder of their own content and returns it.
fn write_headers(cache: &Path) -> io::Result<PathBuf> {
    let folder = cache.join(format!("include-{}", digest(HEADERS.iter().flat_map(|(name, text)| [*name, *text]))));
    if folder.exists() {
        return Ok(folder);
    }
    // The driver and the compiler are two libraries of one process, and may both come here at once.
    let lock = File::create(cache.join("include.lock"))?;
    lock.lock()?;
    if folder.exists() {
        return Ok(folder);
    }
    let partial = cache.join("include.partial");
    for (name, text) in HEADERS {
        let path = partial.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&partial))?;
        fs::write(path, text)?;
    }
    fs::rename(&partial, &folder)?;
    Ok(folder)
}

pub fn digest<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let mut hasher = blake3::Hasher::new();
    for text in texts {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}
