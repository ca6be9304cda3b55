//! What can be done with a run now, what it costs, why it is refused, and how the run continues. Pure: policy, store, cockpit
//! and command line ask here, and render the answers.

pub mod capability;
pub mod continuation;
pub mod cost;
pub mod request;
