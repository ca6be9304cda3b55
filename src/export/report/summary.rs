//! The head of a report: the run, its state in words, the figures that matter most.

use super::facts::Facts;
use super::html::Page;
use crate::format::{age, count, counted, figure, percent};
use crate::protocol::control::{RunState, Status};
use crate::protocol::metrics;

/// Writes the head.
pub fn write(page: &mut Page<'_>, facts: &Facts) {
    page.markup("<header class=\"head\"><h1>").text(&facts.name).markup("</h1>\n<p class=\"verdict\">");
    let Some(status) = &facts.status else {
        page.markup("The run's status is unknown.</p></header>\n");
        return;
    };
    page.markup(state_class(status.state)).value(status.state.word()).markup("</span>");
    if let Some(why) = &status.why {
        page.markup(" · ").text(why);
    }
    if !status.state.is_over() {
        page.markup(" · as of ").value(&facts.times.second(facts.times.now_ms));
    }
    page.markup("</p>\n<dl class=\"facts\">\n");
    write_progress(page, facts, status);
    write_learning(page, status);
    write_course(page, facts, status);
    page.markup("</dl></header>\n");
}

pub(super) fn state_class(state: RunState) -> &'static str {
    match state {
        RunState::Finished => "<span class=\"state good\">",
        RunState::Failed | RunState::NeedsPerson | RunState::Interrupted => "<span class=\"state danger\">",
        RunState::Recovering | RunState::Unattended | RunState::BackingOff | RunState::Stopped => {
            "<span class=\"state warn\">"
        }
        _ => "<span class=\"state\">",
    }
}

fn write_progress(page: &mut Page<'_>, facts: &Facts, status: &Status) {
    let done = status.total_samples.filter(|total| *total > 0).map(|total| status.samples as f64 / total as f64);
    let total = status.total_steps.map(|total| format!("of {}", count(total)));
    let remarks: Vec<String> = total.into_iter().chain(done.map(percent)).collect();
    page.remarked_pair("step", &count(status.step), &remarks.join(" · "));
    if let Some((first, last)) = facts.span_ms() {
        let (begun, end) = (facts.times.moment(first), facts.times.moment(last));
        page.remarked_pair("trained", &age(facts.worked_ms()), &format!("{begun} to {end}"));
    }
    if let Some(useful) = status.time.useful_text().filter(|_| status.step > 0) {
        page.remarked_pair("useful time", &useful, &status.time.parts_text().join(" · "));
    }
}

fn write_learning(page: &mut Page<'_>, status: &Status) {
    if let Some(loss) = status.format_loss() {
        page.remarked_pair("loss", &loss, "newest step");
    }
    if let Some(eval) = &status.eval {
        let shown = eval.loss.map(|loss| (metrics::LOSS, loss));
        let first = eval.metrics.iter().next().map(|(name, value)| (name.as_str(), *value));
        if let Some((name, value)) = shown.or(first) {
            let name = if name == metrics::LOSS { String::new() } else { format!("{name}, ") };
            page.remarked_pair("evaluation", &figure(value), &format!("{name}at step {}", count(eval.step)));
        }
        if let Some(accuracy) = eval.value(metrics::ACCURACY) {
            page.remarked_pair(
                "accuracy",
                &format!("{:.2} %", accuracy * 100.0),
                &format!("at step {}", count(eval.step)),
            );
        }
    }
    if let Some(best) = &status.best {
        let name = if best.metric == metrics::LOSS { "validation loss" } else { &best.metric };
        page.remarked_pair("best", &figure(best.value), &format!("{name}, at step {}", count(best.step)));
    }
}

fn write_course(page: &mut Page<'_>, facts: &Facts, status: &Status) {
    let place = format!("{} of {}", status.rung + 1, status.rungs.len());
    page.remarked_pair("rung", &status.rung_name, if status.rungs.len() > 1 { &place } else { "" });
    let faults = facts.causes.len() as u64;
    let counts = [(status.shifts, "shift"), (status.rollbacks, "rollback"), (status.restarts, "restart")];
    let told = counts.iter().filter(|(count, name)| *count > 0 || *name != "rollback");
    let remark = told.map(|(count, name)| counted(*count, name)).collect::<Vec<_>>().join(" · ");
    page.remarked_pair("faults", &count(faults), &remark);
    if let Some(skipped) = status.skipped.filter(|skipped| *skipped > 0) {
        page.remarked_pair("skipped", &count(skipped), "steps, whose loss or gradient was not finite");
    }
    if status.unguarded > 0 {
        page.remarked_pair("not finite", &count(status.unguarded), "steps, taken by a script without a guard");
    }
    if let Some(device) = &status.device {
        let size = status.parameters.map(|parameters| counted(parameters, "parameter"));
        page.remarked_pair("device", device, &size.unwrap_or_default());
    }
}
