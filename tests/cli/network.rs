//! Two ranks in two network namespaces, with a network that stops. Skipped where a process may not
//! make namespaces.
#![cfg(target_os = "linux")]

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use super::processes::long;
use super::run_files::metrics;
use super::running::Running;
use super::{directory, r1, shown, succeed};

/// Two namespaces that are connected. Removed when dropped.
struct Namespaces {
    names: [String; 2],
}

impl Namespaces {
    /// `None` without the rights or the programs `ip` and `tc`.
    fn new() -> Option<Self> {
        let id = std::process::id();
        let all = Self { names: [format!("r1-{id}-a"), format!("r1-{id}-b")] };
        let [a, b] = [&all.names[0], &all.names[1]];
        let links = [format!("r{id}a"), format!("r{id}b")];
        let commands = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("link add {} netns {a} type veth peer name {} netns {b}", links[0], links[1]),
            format!("-n {a} addr add 10.9.8.1/24 dev {}", links[0]),
            format!("-n {b} addr add 10.9.8.2/24 dev {}", links[1]),
            format!("-n {a} link set {} up", links[0]),
            format!("-n {b} link set {} up", links[1]),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
            // Whether the system has this discipline.
            format!("netns exec {a} tc qdisc add dev lo root blackhole"),
            format!("netns exec {a} tc qdisc del dev lo root"),
        ];
        commands.iter().all(|command| Self::ip(command)).then_some(all)
    }

    fn ip(arguments: &str) -> bool {
        let output = Command::new("ip").args(arguments.split(' ')).output();
        output.is_ok_and(|output| output.status.success())
    }

    /// Packets are dropped from now on, without a message to the sender.
    fn stop(&self) {
        let id = std::process::id();
        for (name, end) in self.names.iter().zip(["a", "b"]) {
            let rule = format!("netns exec {name} tc qdisc add dev r{id}{end} root blackhole");
            assert!(Self::ip(&rule), "{rule}");
        }
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            Self::ip(&format!("netns del {name}"));
        }
    }
}

/// Both ranks end after the time limit, and the run continues.
#[test]
fn a_network_that_stops_ends_the_run_after_the_time_limit() {
    let Some(network) = Namespaces::new() else {
        eprintln!("skipped: this process may not make network namespaces, or the programs ip and tc are missing");
        return;
    };
    let dir = directory(&[("a.lua", &long())], true);
    let start = |rank: usize| {
        let output = dir.path().join(format!("rank-{rank}"));
        fs::create_dir(&output).unwrap();
        let args = ["run", "a.lua", "-q", "--threads", "1", "--name", "k", "--rank-timeout", "3"];
        let program = r1(dir.path(), &args);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &network.names[rank]]).arg(program.get_program()).args(program.get_args());
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(dir.path());
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2").env("MASTER_ADDR", "10.9.8.1");
        command.env("GLOO_SOCKET_IFNAME", format!("r{}{}", std::process::id(), ["a", "b"][rank]));
        Running::of(command, &output)
    };
    let ranks = [start(0), start(1)];
    ranks[0].until_lines(&dir.path().join("runs/k/metrics.jsonl"), 2);
    network.stop();
    let began = Instant::now();
    for rank in ranks {
        let output = rank.end();
        let text = shown(dir.path(), &output);
        assert_eq!(output.status.code(), Some(10), "{text}");
        assert!(text.contains("another process of the run has ended or does not answer"), "{text}");
    }
    assert!(began.elapsed() < Duration::from_mins(1), "{:?}", began.elapsed());
    let done = metrics(&dir.path().join("runs/k")).len();
    let steps = format!("trainer.steps={}", done + 1);
    succeed(dir.path(), &["run", "a.lua", "-q", "--resume", "runs/k", "--nproc", "2", "--threads", "1", &steps]);
    assert_eq!(metrics(&dir.path().join("runs/k")).len(), done + 1);
}
