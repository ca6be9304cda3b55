//! The parts of a run that outlive its processes.
//!
//! ```text
//! run directory   run.yaml  run.db  {keeper,parent,worker}.lock  checkpoints/  samples/  adopted/  attempts/  kernels/  *.log
//!                 companion.json  command-end.json  environment.json  verified.json  leases/  requests/
//! ```
//! Checkpoint manifests are the truth about training; run.db is the truth about decisions. Only the
//! keeper writes run.db and deletes checkpoints; any process may read.

pub mod adopted;
pub mod batch;
pub mod checkpoint;
pub mod claims;
pub mod command_end;
pub mod command_line;
pub mod companion;
pub mod continuation;
pub mod curve;
mod damaged;
pub mod database;
pub mod disk;
pub mod environment;
pub mod file_system;
pub mod foreign;
pub mod identity;
pub mod kernels;
pub mod labels;
pub mod lock;
pub mod losses;
pub mod owners;
pub mod permissions;
pub mod reader;
pub mod removal;
pub mod reserve;
pub mod resume_proof;
pub mod rows;
pub mod run_dir;
pub mod run_dir_watch;
pub mod run_summary;
pub mod runs_directories;
pub mod samples;
mod seal;
pub mod shared_folder;
pub mod socket_place;
pub mod stamp;
pub mod step_metrics;
pub mod summary;
pub mod umask;
pub mod user_folder;
mod without_keeper;
pub mod worker_log;
pub mod writer;
