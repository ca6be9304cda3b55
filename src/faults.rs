//! Faults: what each means, how the keeper responds, and what the user can do: `assets/faults.yaml`, with one row for each
//! failure class and for each of NVIDIA's Xid numbers.
//!
//! ```text
//! class, Xid number, damage ─┬─▶ Response ─▶ the policy acts on it, triage promises it
//!                            └─▶ advice   ─▶ triage, doctor and the end of a run say it
//! ```
//! The page docs/src/faults.md is made from it.

pub mod response;
pub mod xid;

use crate::config::knobs::Relief;
use crate::config::{typed, yaml};
use crate::protocol::cause::Damage;
use crate::protocol::class::FailureClass;
use response::Response;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use xid::Xid;

const SHIPPED: &str = include_str!("../assets/faults.yaml");
/// The keeper's response to a cause that may pass by itself.
pub const ONCE: &str = "restarts once; if it comes back without progress, stops and alerts you";
/// Of a class that the table lacks; a test finds it.
static MISSING: ClassFault = ClassFault {
    response: Response::Again,
    first: None,
    only: None,
    looks_like: None,
    outside: false,
    advice: String::new(),
};

static TABLE: LazyLock<Table> = LazyLock::new(|| read_table().unwrap_or_default());

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    reset: String,
    fabric: String,
    classes: BTreeMap<FailureClass, ClassFault>,
    xids: Vec<Xid>,
}

/// The row of a failure class.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassFault {
    /// The keeper's response to a worker that ended by it.
    pub response: Response,
    /// The keeper's actions before the response.
    first: Option<String>,
    /// The keeper's actions where no worker ends by it.
    pub only: Option<String>,
    /// Relief that may help once the restarts are used up: it may be a sign of another cause.
    looks_like: Option<Relief>,
    /// Whether the cause lies outside the worker and its work: it counts against neither a rung nor a checkpoint.
    #[serde(default)]
    pub outside: bool,
    /// Advice for the user where no more is known.
    pub advice: String,
}

impl ClassFault {
    /// Returns all that the keeper does, as the rest of a sentence that begins with it.
    #[must_use]
    pub fn describe(&self) -> String {
        let rungs = "within the restart budget; then tries the safer rungs, once each";
        let response = match (self.response, self.looks_like) {
            (Response::Again, Some(_)) => format!("{}, {rungs}", self.response),
            (response, _) => response.to_string(),
        };
        match (&self.only, &self.first) {
            (Some(only), _) => only.clone(),
            (None, Some(first)) => format!("{first} {response}"),
            (None, None) => response,
        }
    }
}

fn read_table() -> Option<Table> {
    let mut table = typed::read_tree::<Table>(&yaml::parse(SHIPPED).ok()?.0).0?;
    for xid in &mut table.xids {
        xid.advice = xid.advice.replace("{reset}", &table.reset).replace("{fabric}", &table.fabric);
    }
    Some(table)
}

/// Returns the row of a class.
#[must_use]
pub fn of_class(class: FailureClass) -> &'static ClassFault {
    TABLE.classes.get(&class).unwrap_or(&MISSING)
}

/// Returns the response to a fault. Damage that no restart repairs outweighs its class.
#[must_use]
pub fn response(class: FailureClass, number: Option<u32>, damage: Option<Damage>) -> Response {
    match (damage, class, number) {
        (Some(_), ..) => Response::Stop,
        (None, FailureClass::Xid, Some(number)) => xid::respond(number),
        (None, class, _) => of_class(class).response,
    }
}

/// Returns the advice about a fault of which no more is known.
#[must_use]
pub fn advice(class: FailureClass, number: Option<u32>) -> &'static str {
    let known = number.filter(|_| class == FailureClass::Xid).and_then(xid::find);
    known.map_or(&of_class(class).advice, |known| &known.advice)
}

/// Returns the relief that may help against a failure that comes back, whether or not it is the first response; none for
/// causes that no rung changes.
#[must_use]
pub fn plausible_relief(class: FailureClass, number: Option<u32>) -> Option<Relief> {
    response(class, number, None).relief().or(of_class(class).looks_like)
}

#[cfg(test)]
mod tests;
