//! A shift or restart in progress, stage by stage, and its result once it is done.

use crate::cockpit::action::Action;
use crate::cockpit::state::State;
use crate::cockpit::state::shift_progress::{ShiftProgress, shift_result};
use crate::cockpit::ui::{self, Popup, Stand};
use crate::cockpit::verdict::Tone;
use crate::format::{apart, count, figure, took};
use crate::protocol::control::{Stage, StageName};
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

const WIDTH: u16 = 48;

/// Draws the box.
pub fn render(frame: &mut Frame<'_>, within: Rect, state: &State, theme: &Theme) {
    let Some((status, passage)) = state.status().and_then(|status| Some((status, status.passage.as_ref()?))) else {
        return;
    };
    let restart = passage.from == passage.to;
    let (done, since) = match state.shift_progress {
        ShiftProgress::Running { stage_since_ms, .. } => (false, state.now_ms.saturating_sub(stage_since_ms)),
        ShiftProgress::Done { .. } | ShiftProgress::None => (true, 0),
    };
    let since = u64::try_from(since).unwrap_or(0);
    let mut lines: Vec<Line<'static>> = Vec::new();
    let label: Label = if state.command.is_some() { command_label } else { trainer_label };
    // A command compiles what it wants, unseen. Whether it saves shows once its first stage is known.
    let saves = passage.stages.first().is_none_or(|stage| stage.name == StageName::Save);
    let is_unseen = |name| name == StageName::Compile || name == StageName::Save && !saves;
    let plan = PLAN.into_iter().filter(|name| state.command.is_none() || !is_unseen(*name));
    lines.extend(stage_lines(&passage.stages, plan, since, done, label, theme));
    lines.push(Line::default());
    let open = passage.stages.last().is_some_and(|stage| stage.took_ms.is_none());
    let total = passage.total_ms().saturating_add(if open { since } else { 0 });
    lines.push(stage_row("", "total", &took(total), (theme.dim, theme.strong)));
    if let Some((before, after)) = shift_result(status).filter(|_| done) {
        lines.push(Line::default());
        lines.push(before_and_after("step", &count(before.0), &count(after.0), theme));
        let (earlier, later) = apart(before.1, after.1);
        lines.push(before_and_after("loss", &earlier, &later, theme));
    } else if let Some((step, loss)) = passage.before {
        let text =
            format!("from step {}, loss {}   {} hide", count(step), figure(loss), state.keys.key_of(Action::Back));
        lines.push(Line::default());
        lines.push(Line::styled(text, theme.dim));
    }
    let title = match (done, restart) {
        (true, true) => format!("restarted: {}", passage.to),
        (true, false) => format!("shifted: {} → {}", passage.from, passage.to),
        (false, true) => format!("restarting: {}", passage.to),
        (false, false) => format!("shifting: {} → {}", passage.from, passage.to),
    };
    let high = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    let tone = if done { Tone::Good } else { Tone::Busy };
    let inner = Popup { title: &title, size: (WIDTH, high), tone, stand: Stand::Corner }.open(frame, within, theme);
    ui::render_lines(frame, inner, lines);
}

fn stage_row(
    sign: &str,
    name: &str,
    time: &str,
    styles: (ratatui::style::Style, ratatui::style::Style),
) -> Line<'static> {
    let name_width = usize::from(WIDTH).saturating_sub(14);
    Line::from(vec![
        Span::styled(ui::pad(sign, 2), styles.0),
        Span::styled(ui::pad(name, name_width), styles.0),
        Span::styled(ui::pad_left(time, 12), styles.1),
    ])
}

/// Stages of a shift or restart, in order; stages that it does not need are skipped.
const PLAN: [StageName; 6] =
    [StageName::Save, StageName::Stop, StageName::AwaitVram, StageName::Load, StageName::Compile, StageName::FirstStep];

/// Returns all stages from the start, so that the box keeps its size: done, under way, pending or skipped.
fn stage_lines(
    stages: &[Stage],
    plan: impl Iterator<Item = StageName>,
    since: u64,
    done: bool,
    label: Label,
    theme: &Theme,
) -> Vec<Line<'static>> {
    let known = |name: StageName| stages.iter().any(|stage| planned_parts(&stage.name).contains(&name));
    // Known stages keep the order in which they happened; a planned stage before the next known one was skipped.
    let mut rest = plan.filter(|name| !known(*name)).peekable();
    let order = |name: StageName| PLAN.iter().position(|planned| planned_parts(&name).contains(planned));
    let dim = |name: StageName, word: &str| stage_row("·", label(name), word, (theme.dim, theme.dim));
    let mut lines = Vec::new();
    for stage in stages {
        while let Some(name) = rest.next_if(|name| order(stage.name).is_some_and(|at| order(*name) < Some(at))) {
            lines.push(dim(name, "not needed"));
        }
        lines.push(stage_line(stage, since, label, theme));
    }
    lines.extend(rest.map(|name| dim(name, if done { "not needed" } else { "" })));
    lines
}

/// Returns the planned stages that a stage stands for.
fn planned_parts(name: &StageName) -> &[StageName] {
    match name {
        StageName::Start => &[StageName::Load],
        StageName::StartAndStep => &[StageName::Load, StageName::FirstStep],
        name => std::slice::from_ref(name),
    }
}

fn stage_line(stage: &Stage, since: u64, label: Label, theme: &Theme) -> Line<'static> {
    let name = label(stage.name);
    let plain = ratatui::style::Style::new();
    match stage.took_ms {
        Some(time) => {
            let mut line = stage_row("●", name, &took(time), (plain, plain));
            line.spans[0].style = theme.good;
            line
        }
        None => stage_row("▸", name, &took(since), (theme.accent, theme.accent)),
    }
}

/// Names the stages of a run.
type Label = fn(StageName) -> &'static str;

fn command_label(name: StageName) -> &'static str {
    match name {
        StageName::Stop | StageName::Terminate => "end the command",
        StageName::Kill => "kill the command",
        StageName::Load => "start the command",
        name => trainer_label(name),
    }
}

fn trainer_label(name: StageName) -> &'static str {
    match name {
        StageName::Save => "save at the next step",
        StageName::Stop => "stop the worker",
        StageName::AwaitVram => "wait for free memory",
        StageName::BackOff => "wait before restarting",
        StageName::Cool => "let the GPU cool",
        StageName::Load => "start, load, verify",
        StageName::Start => "start the command",
        StageName::StartAndStep => "start, first step",
        StageName::Compile => "compile kernels",
        StageName::Notice => "notice the fault",
        StageName::Terminate | StageName::Kill | StageName::FirstStep | StageName::Other => name.words(),
    }
}

fn before_and_after(label: &str, before: &str, after: &str, theme: &Theme) -> Line<'static> {
    Line::from(vec![
        Span::styled(format!("  {label}  "), theme.dim),
        Span::raw(before.to_owned()),
        Span::styled(" → ", theme.dim),
        Span::styled(after.to_owned(), theme.strong),
    ])
}
