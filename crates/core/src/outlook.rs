//! Decides which requests a run takes, their cost, the reason of a refusal, and how the run continues. Pure: policy, store,
//! cockpit and command line ask here, and render the answers.

pub mod capability;
pub mod continuation;
pub mod cost;
pub mod effect;
pub mod request;
