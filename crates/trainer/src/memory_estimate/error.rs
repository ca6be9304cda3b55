//! The reasons why an estimate fails.

use crate::failure::NonFinite;
use crate::param_rules::RulesError;
use crate::task::DataError;
use burn::tensor::backend::ExecutionError;
use downshift_core::config::problem::Problem;
use downshift_core::protocol::worker::Failed;
use std::io;

/// The reason why a rung's memory cannot be estimated.
#[derive(Debug, thiserror::Error)]
pub enum EstimateError {
    /// The sections of the task cannot be read.
    #[error("{0}")]
    Section(Problem),
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// `training.trained` or `optimizer.groups` does not fit the model.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// No loader thread can be started.
    #[error("the operating system refuses a loader thread: {0}")]
    Loader(#[from] io::Error),
    /// A step failed.
    #[error("{}", .0.message)]
    Step(Failed),
    /// A step was dropped.
    #[error("the {0} is not finite")]
    NonFinite(NonFinite),
    /// An update failed.
    #[error(transparent)]
    Update(#[from] ExecutionError),
    /// An earlier update lost the model.
    #[error("an update failed")]
    NoModel,
    /// The model panicked on shapes without values.
    #[error("the model uses an operation whose memory cannot be estimated; it is known after the rung has run")]
    Unsupported,
}
