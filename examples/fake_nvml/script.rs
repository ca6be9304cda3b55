//! Plays the script beside the library: values, error codes, delays and hangs per call.

use super::abi::Code;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, thread};

static CALLS: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

/// The script's path without its extension: this library's own file, as mapped by the kernel.
static OWN_PATH: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    // A private function: the address of an exported one would need its name, which tests may change.
    let here = read_script as *const () as usize;
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let within = usize::from_str_radix(from, 16).ok()? <= here && here < usize::from_str_radix(to, 16).ok()?;
        within.then(|| rest.find('/').map(|at| PathBuf::from(&rest[at..])))?
    })
});

/// Runs when the library is loaded, before any call; leaves a file `libfake_nvml.loaded`.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    if let Some(path) = OWN_PATH.as_ref() {
        let _ = fs::write(path.with_extension("loaded"), "");
    }
}

fn read_script() -> Map<String, Value> {
    let text = OWN_PATH.as_ref().and_then(|path| fs::read_to_string(path.with_extension("json")).ok());
    text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

fn held_files() -> impl Iterator<Item = fs::DirEntry> {
    let folder = OWN_PATH.as_ref().map(|path| path.with_extension("held"));
    folder.and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten()
}

/// Returns the processes that asked to be listed and are alive, or stuck.
pub fn listed_processes() -> Value {
    let of_process = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path()).ok()?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let pid: u32 = entry.file_name().into_string().ok()?.parse().ok()?;
        let is_alive = PathBuf::from("/proc").join(entry.file_name()).exists();
        let used = match words.get(2).filter(|word| is_alive || **word == "stuck")? {
            &"listed" | &"stuck" => json!(words.first()?.parse::<u64>().ok()?),
            _ => Value::Null,
        };
        Some(json!({ "pid": pid, "used": used }))
    };
    held_files().filter_map(of_process).collect()
}

/// Returns the bytes that processes report holding, or held until a few readings ago.
pub fn held_bytes() -> u64 {
    static READ_SINCE: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());
    let of_process = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path()).ok()?;
        let mut words = text.split_whitespace();
        let (bytes, lingers) = (words.next()?, words.next()?);
        let pid = entry.file_name().into_string().ok()?;
        let mut gone = READ_SINCE.lock().unwrap_or_else(PoisonError::into_inner);
        let readings = gone.entry(pid).or_insert(0);
        *readings += u64::from(!PathBuf::from("/proc").join(entry.file_name()).exists());
        (*readings <= lingers.parse().ok()?).then(|| bytes.parse::<u64>().ok())?
    };
    held_files().filter_map(of_process).sum()
}

/// Plays one call: returns the value for the caller, or the error code.
pub fn play_call(symbol: &'static str, healthy: Value) -> Result<Value, Code> {
    let before = {
        let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        let count = calls.entry(symbol).or_insert(0);
        *count += 1;
        *count - 1
    };
    let script = read_script();
    let rules = script.get(symbol).or_else(|| script.get("*").filter(|_| symbol.starts_with("nvmlDevice")));
    let after = |rule: &&Value| rule["after"].as_u64().unwrap_or(0);
    let rule = rules.and_then(Value::as_array).and_then(|rules| rules.iter().rfind(|rule| after(rule) <= before));
    let Some(rule) = rule else { return Ok(healthy) };
    if rule["hang"] == true {
        hang_forever();
    }
    thread::sleep(Duration::from_millis(rule["delay_ms"].as_u64().unwrap_or(0)));
    match rule["code"].as_u64() {
        Some(code) if code != 0 => return Err(code as Code),
        _ => {}
    }
    let value = rule.get("value").cloned().unwrap_or(healthy);
    match (value.as_u64(), rule["per_call"].as_u64()) {
        (Some(start), Some(step)) => Ok(json!(start + step * (before - after(&rule)))),
        _ => Ok(value),
    }
}

fn hang_forever() -> ! {
    if let Some(path) = OWN_PATH.as_ref() {
        let _ = fs::write(path.with_extension("hung"), "");
    }
    loop {
        thread::park();
    }
}
