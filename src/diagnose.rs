//! Diagnosis without a run: readings of the GPU and the machine, the doctor's
//! checks, the setup that continues runs after a reboot, and the bundle for a bug report.

pub mod autostart;
pub mod bundle;
pub mod doctor;
pub mod python;
pub mod rank_check;
pub mod readings;
pub mod watch;
