//! `notify test`: sends a message through every channel to check that it arrives.

use super::trust::{self, Trust};
use super::{Failure, Outcome, line, run};
use crate::notify::{self, Message};
use crate::protocol::worker::Level;
use crate::trainer::Trainer;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Arguments of `notify`.
#[derive(Debug, Args)]
pub struct NotifyArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Send a message through every channel and report which ones accepted it
    Test {
        /// A run file whose `notify` section is tested; defaults to ~/.config/downshift/notify.yaml
        #[arg(value_name = "CONFIG")]
        config: Option<PathBuf>,
        #[command(flatten)]
        trust: Trust,
    },
}

pub fn notify(args: &NotifyArgs, trainer: &dyn Trainer) -> Outcome {
    let Action::Test { config, trust } = &args.action;
    let of_run = match config {
        Some(config) => {
            let run = run::load_run_file(Some(config), &[], "auto", trainer)?;
            trust::require_approval(&run, *trust)?;
            run.notify
        }
        None => None,
    };
    let settings = notify::settings(of_run.as_ref()).map_err(|wrong| Failure::new(2, wrong))?;
    let channels = notify::channels(&settings);
    if channels.is_empty() {
        return Err(Failure::new(1, "no notification channel: turn on bell or desktop, or add a webhook"));
    }
    let message = Message {
        run: "downshift".to_owned(),
        level: Level::Error,
        title: "downshift: a test".to_owned(),
        text: "A run will notify you this way when it needs attention.".to_owned(),
    };
    let mut failed = 0;
    for channel in &channels {
        match channel.send(&message) {
            Ok(()) => line!("ok    {}", channel.name()),
            Err(why) => {
                failed += 1;
                line!("fail  {}: {why}", channel.name());
            }
        }
    }
    Ok(u8::from(failed > 0))
}
