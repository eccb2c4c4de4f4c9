//! Tests of the system call filter.
#![allow(clippy::unwrap_used)]
use super::*;

/// The kernel's result for a filter.
fn verdict(program: &[sock_filter], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let mut data = Vec::new();
    data.extend(number.to_le_bytes());
    data.extend(architecture.to_le_bytes());
    data.extend([0; 8]);
    data.extend(arguments.iter().flat_map(|argument| argument.to_le_bytes()));
    let (mut at, mut accumulator) = (0, 0_u32);
    loop {
        let instruction = program[at];
        let k = instruction.k;
        at += 1;
        let jump = |taken: bool| usize::from(if taken { instruction.jt } else { instruction.jf });
        let code = u32::from(instruction.code);
        if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS {
            accumulator = u32::from_le_bytes(data[k as usize..][..4].try_into().unwrap());
        } else if code == libc::BPF_JMP | libc::BPF_JEQ {
            at += jump(accumulator == k);
        } else if code == libc::BPF_JMP | libc::BPF_JGE {
            at += jump(accumulator >= k);
        } else if code == libc::BPF_JMP | libc::BPF_JA {
            at += k as usize;
        } else if code == libc::BPF_ALU | libc::BPF_AND {
            accumulator &= k;
        } else {
            assert_eq!(code, libc::BPF_RET);
            return k;
        }
    }
}

const DENIED: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

#[test]
fn every_system_call_has_its_listed_verdict() {
    for (role, role_calls) in [(Role::Server, SERVER), (Role::Child, &[][..]), (Role::Program, PROGRAM)] {
        let program = filter(role);
        for number in (0..1000).chain([1 << 30, u32::MAX]) {
            let call = c_long::from(number);
            let listed = [ALWAYS, OLDER, role_calls].iter().any(|calls| calls.contains(&call));
            // An argument that no condition accepts.
            let got = verdict(&program, THIS_ARCHITECTURE, number, [u64::MAX - (1 << 16); 6]);
            let expected = if call == libc::SYS_clone3 {
                libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32
            } else if listed {
                libc::SECCOMP_RET_ALLOW
            } else {
                DENIED
            };
            assert_eq!(got, expected, "{role:?} {number}");
        }
        assert_eq!(verdict(&program, 0x4000_0003, 1, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
    }
}

#[test]
fn system_call_arguments_are_checked() {
    let program = filter(Role::Child);
    let ask = |call: c_long, index: usize, value: u64| {
        let mut arguments = [0; 6];
        arguments[index] = value;
        verdict(&program, THIS_ARCHITECTURE, call as u32, arguments)
    };
    for &(call, index, values) in VALUES {
        for &value in values {
            assert_eq!(ask(call, index.into(), value), libc::SECCOMP_RET_ALLOW);
            assert_eq!(ask(call, index.into(), value | 1 << 40), DENIED);
        }
    }
    let map = |length, flags: libc::c_int| {
        verdict(&program, THIS_ARCHITECTURE, libc::SYS_mmap as u32, [0, length, 0, flags as u64, 0, 0])
    };
    assert_eq!(map(4096, libc::MAP_PRIVATE), libc::SECCOMP_RET_ALLOW);
    assert_eq!(map(4096, libc::MAP_PRIVATE | libc::MAP_STACK), DENIED);
    assert_eq!(map(1 << 20, libc::MAP_STACK), libc::SECCOMP_RET_ALLOW);
    assert_eq!(map((1 << 32) + 4096, libc::MAP_STACK), libc::SECCOMP_RET_ALLOW);
    assert_eq!(ask(libc::SYS_fcntl, 1, libc::F_SETOWN as u64), DENIED);
    assert_eq!(ask(libc::SYS_ioctl, 1, libc::TIOCSTI), DENIED);
    assert_eq!(ask(libc::SYS_socketpair, 0, libc::AF_INET as u64), DENIED);
    assert_eq!(ask(libc::SYS_clone, 0, libc::SIGCHLD as u64), DENIED);
    assert_eq!(ask(libc::SYS_clone, 0, (libc::CLONE_THREAD | libc::CLONE_VM) as u64), libc::SECCOMP_RET_ALLOW);
}

#[test]
fn the_seccomp_search_is_logarithmic() {
    assert!(filter(Role::Child).len() < 400);
}
