//! Reading run files, command lines, scripts, logs, and messages between processes. No run is started.

mod config;
mod experiment;
#[path = "../helper/mod.rs"]
mod helper;
mod init;
mod log_metrics;
mod profiles;
mod protocol;
mod triage;
mod triage_corpus;
mod triage_recovery;
