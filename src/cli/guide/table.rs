//! The table: every command once, under its purpose.

use super::{CommandGuide, Group};

/// The groups in the order of the help.
pub const GROUPS: &[Group] = &[TRAIN, PREPARE, STEER, RUNS, CAUSES, JOBS, SETUP];

/// A command with its examples.
macro_rules! entry {
    ($name:literal, $($line:literal => $effect:literal),+) => {
        CommandGuide { name: $name, examples: &[$(($line, $effect)),+] }
    };
}

const TRAIN: Group = Group {
    heading: "Train",
    commands: &[
        entry!("run",
            "downshift run text" => "trains the small language model that ships inside, and opens the cockpit on it",
            "downshift run my.yaml --set training.epochs=2" => "starts a run file of yours, with another value for one knob",
            "downshift run -- python train.py --lr 1e-3" => "keeps a script of yours, without a run file",
            "downshift run digits --from digits" => "begins from the newest checkpoint of another run, with this file",
            "downshift run a.yaml b.yaml c.yaml" => "queues three runs, one after the other; a folder queues its run files",
            "downshift run digits --headless" => "prints one line per event; the exit code reports how the run ended"),
        entry!("resume",
            "downshift resume" => "continues the newest run from its newest checkpoint that verifies",
            "downshift resume digits --from 1200" => "goes back to step 1200; newer checkpoints are set aside",
            "downshift resume digits --rung safe" => "continues on the rung `safe`, such as after an out-of-memory",
            "downshift resume digits --as-base --epochs 5" => "starts a new run from the weights, for five epochs",
            "downshift resume digits --branch" => "starts a new run from the checkpoint; the old one stays as it is",
            "downshift resume --interrupted" => "continues every run that a reboot ended"),
        entry!("adopt",
            "downshift adopt --session train" => "keeps the training in the tmux session `train`, by its run file if there is one",
            "downshift adopt my.yaml --pid 4711 --may-end" => "continues from the newest checkpoint when process 4711 dies; may shift it",
            "downshift adopt --pid 4711 --restart -- python train.py" => "without a run file: starts the command again when it dies"),
        entry!("trial",
            "downshift trial text --for 2m" => "trains for two minutes and prints a checklist",
            "downshift trial train.yaml" => "of a command: kills it after a checkpoint, resumes it, and compares its steps"),
        entry!("drill",
            "downshift drill" => "shows how a run survives out of memory, NaN losses, a hang, a kill and a hot GPU"),
    ],
};

const PREPARE: Group = Group {
    heading: "Prepare a run",
    commands: &[
        entry!("init",
            "downshift init -- python train.py --lr 1e-3" => "proposes train.yaml from the arguments in the script's source",
            "downshift init digits" => "writes digits.yaml, a commented run file for you to edit",
            "downshift init task" => "writes a Cargo project with a task of your own"),
        entry!("show",
            "downshift show" => "lists the run files, themes and keymaps that ship inside",
            "downshift show lora" => "prints a run file with its comments",
            "downshift show dark" => "prints a theme"),
        entry!("check",
            "downshift check my.yaml" => "shows all rungs side by side, and every mistake with its line",
            "downshift check digits --preflight" => "lists everything that a start depends on: device, data, disk"),
        entry!("plan",
            "downshift plan text --gpu 16GiB" => "estimates the memory of each rung on a GPU that is not here",
            "downshift plan my.yaml --measure 5" => "trains each rung for 5 steps and prints what it really took"),
        entry!("prepare",
            "downshift prepare my.yaml --device cuda" => "compiles and tunes the kernels of every rung before the start"),
        entry!("compare-knob",
            "downshift compare-knob text training.gradient_checkpointing false true" =>
                "trains with each value for 20 steps: memory, speed and loss side by side"),
    ],
};

const STEER: Group = Group {
    heading: "Watch and steer",
    commands: &[
        entry!("attach",
            "downshift attach" => "opens the cockpit on the newest run; q closes it, and the run continues",
            "downshift attach digits --read-only" => "opens it without sending anything to the run"),
        entry!("status",
            "downshift status" => "prints the state, step and loss of the newest run",
            "downshift status --format json" => "prints the same for programs; `stalled_ms` is there while a step takes longer than usual"),
        entry!("wait",
            "downshift wait" => "waits until the newest run is over; the exit code is 0 if it finished",
            "downshift wait digits --timeout 2h" => "gives up after two hours with exit code 124; the run goes on"),
        entry!("shift",
            "downshift shift down" => "saves, and continues on the next safer rung",
            "downshift shift digits safe" => "continues the run `digits` on the rung `safe`"),
        entry!("accept", "downshift accept" => "carries out what the keeper proposes, with the autopilot off"),
        entry!("checkpoint", "downshift checkpoint" => "saves a checkpoint at the next step"),
        entry!("pause", "downshift pause" => "saves, ends the worker and frees the GPU; `downshift resume` continues"),
        entry!("restart", "downshift restart" => "saves, and restarts on the same rung"),
        entry!("stop", "downshift stop digits" => "saves and ends the run `digits`"),
    ],
};

const RUNS: Group = Group {
    heading: "Runs and results",
    commands: &[
        entry!("runs",
            "downshift runs --sort best" => "lists runs, the best evaluation first",
            "downshift runs --all" => "lists every living run on this machine, in the order of the queue"),
        entry!("queue",
            "downshift queue" => "lists the runs that train and those that wait, in their order",
            "downshift queue move digits first" => "lets the run `digits` be the next; also `last`, `up`, `down`, or a number",
            "downshift queue hold digits" => "lets others pass it, until `queue release digits`",
            "downshift queue remove digits" => "takes it out before its first step; `resume digits` puts it back"),
        entry!("checkpoints",
            "downshift checkpoints verify" => "reads every byte of the newest run's checkpoints",
            "downshift checkpoints digits export --best --out best.safetensors" => "writes the best weights to a file",
            "downshift checkpoints copy --to backup" => "copies the best checkpoint to a second place"),
        entry!("samples",
            "downshift samples" => "shows what the model did at its newest evaluation",
            "downshift samples --step 400 --out pictures" => "copies the pictures of the evaluation at step 400"),
        entry!("plot",
            "downshift plot --out loss.svg --metric loss,lr" => "draws two charts of the newest run",
            "downshift plot digits text --out both.png --log" => "overlays two runs"),
        entry!("report", "downshift report --out run.html" => "writes the newest run as one page for a browser",
            "downshift report --since 12h --out night.html" => "prints all runs of a night, with causes and times, and writes them as one page"),
        entry!("export",
            "downshift export --format csv" => "prints one row per attempt and step",
            "downshift export --format tensorboard --out tb" => "writes event files for `tensorboard --logdir tb`"),
        entry!("tag", "downshift tag digits +baseline -old" => "adds one tag and removes another"),
        entry!("note", "downshift note digits halved-rate" => "writes a note, which view 6 of the cockpit shows"),
        entry!("archive",
            "downshift archive digits" => "leaves a run out of the lists",
            "downshift archive digits --undo" => "brings it back"),
        entry!("delete",
            "downshift delete digits-20260131-142500" => "shows the size of a run that has ended, asks, and deletes it"),
    ],
};

const CAUSES: Group = Group {
    heading: "Find causes",
    commands: &[
        entry!("doctor",
            "downshift doctor" => "checks everything a run depends on; each failure comes with its fix",
            "downshift doctor train.yaml" => "also checks the Python environment of the command",
            "downshift doctor --ranks 2" => "tries out two ranks: join, sum, wait, measure"),
        entry!("triage",
            "downshift triage train.log" => "names the causes in any training log, with lines and advice",
            "downshift triage digits" => "says why the run failed, and what else is in its log",
            "downshift triage rank0.log rank1.log" => "diagnoses each of several logs",
            "downshift triage train.log --memory" => "lists its memory figures over time"),
        entry!("watch", "downshift watch --once" => "prints GPU, processes, RAM and disk once, without a run"),
        entry!("bundle", "downshift bundle" => "writes an archive of the newest run for a bug report, without secrets"),
    ],
};

const JOBS: Group = Group {
    heading: "Batch jobs",
    commands: &[entry!("sbatch",
        "downshift sbatch my.yaml --time 8:00:00 --gpus 1" => "prints the script of a Slurm job that requeues itself",
        "downshift sbatch my.yaml --submit -- --mem=32G" => "submits it, with one more option of sbatch")],
};

const SETUP: Group = Group {
    heading: "Set up",
    commands: &[
        entry!("notify", "downshift notify test" => "sends a test notification through every channel"),
        entry!("completions",
            "downshift completions bash" => "prints the script that completes commands, runs and run files in bash"),
        entry!("man", "downshift man ~/.local/share/man/man1" => "writes one manual page per command"),
    ],
};
