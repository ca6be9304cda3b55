//! The keeper and the store beside a scripted worker: faults, kills, hosts, disks, GPUs, notifications.

mod causes;
mod devices;
mod ends;
mod health;
#[path = "../helper/mod.rs"]
mod helper;
mod injections;
mod keeper;
mod metrics;
mod notifications;
mod old_run;
mod other_users;
mod outside;
mod probe;
mod queue;
mod shared_folder;
mod standby;
mod store_faults;
mod survival;
mod trust;
mod watching;
