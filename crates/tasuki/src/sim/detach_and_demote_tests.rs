//! Simulated tests of detached workers and of leaders that lose their term.

use std::sync::Arc;
use std::time::Duration;

use tasuki_core::{AttemptErrorCode, RunId, RunState};
use tasuki_store::{Fault, Run, Writer};

use super::host::Tick;
use super::regressions_found_by_simulation::create_due_run;
use super::state::{SECOND, SimState};
use super::steps::Simulation;
use crate::node::coordination::coordinator_trait::ClusterRole;

/// Runs a test with three nodes and an in-memory coordinator; the first node is leader.
fn with_three_nodes(test: impl AsyncFnOnce(Simulation)) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the runtime starts");
    runtime.block_on(async {
        let state = SimState::new(1, false);
        state.lock().no_faults = true;
        let mut simulation = Simulation::without_jobs(state).await.expect("the simulation starts");
        simulation.use_in_memory_coordinator();
        for host in 0..3 {
            simulation.start_or_stop_node(host).await.expect("the node starts");
        }
        run_ticks(&mut simulation, 0, &[Tick::ElectOrRenew]).await;
        for host in 0..3 {
            run_ticks(&mut simulation, host, &[Tick::Heartbeat, Tick::CheckLeader]).await;
        }
        test(simulation).await;
    });
}

async fn run_ticks(simulation: &mut Simulation, host: usize, ticks: &[Tick]) {
    for tick in ticks {
        simulation.tick(host, *tick).await.expect("the database responds");
    }
    while !simulation.state.lock().orders_in_flight.is_empty() {
        simulation.deliver_order();
    }
}

async fn find_run(simulation: &Simulation, run: RunId) -> Run {
    simulation.store.find_run(run).await.expect("the database responds").expect("the row exists")
}

/// Reasons of a run's transition records, which here are about its continuation.
async fn continuation_reasons(simulation: &Simulation, run: RunId) -> Vec<String> {
    let transitions =
        simulation.store.list_rare_transitions(run).await.expect("the database responds");
    transitions.into_iter().filter_map(|transition| transition.reason).collect()
}

/// Starts a command on a node that is not leader; returns the run and the host.
async fn start_command(simulation: &mut Simulation) -> (RunId, usize) {
    let id = create_due_run(simulation, "event").await;
    run_ticks(simulation, 0, &[Tick::Plan]).await;
    for host in 0..3 {
        run_ticks(simulation, host, &[Tick::Heartbeat, Tick::StartDue]).await;
    }
    let run = find_run(simulation, id).await;
    assert_eq!(run.state, RunState::Running);
    let host = (0..3).find(|host| Some(worker_id(simulation, *host)) == run.worker);
    let host = host.expect("one of them holds it");
    assert_ne!(host, 0, "a leader only plans while others can work");
    (id, host)
}

fn worker_id(simulation: &Simulation, host: usize) -> tasuki_core::WorkerId {
    simulation.hosts[host].incarnation.as_ref().expect("the node runs").worker.id()
}

async fn detach_worker(simulation: &Simulation, host: usize) {
    let id = worker_id(simulation, host);
    let detached = simulation.store.detach_worker(Writer::Api, "user", id, "a test").await;
    assert!(detached.expect("the database responds"));
}

/// Asserts that the only process still runs and was not asked to stop.
fn assert_nothing_stopped(simulation: &Simulation) {
    let inner = simulation.state.lock();
    assert_eq!((inner.stop_requests, inner.processes.len()), (0, 1));
}

async fn assert_database_clean(simulation: &Simulation) {
    let report = simulation
        .store
        .check_invariants(|| simulation.state.database_time())
        .await
        .expect("the database responds");
    assert!(report.is_clean(), "{:?}", report.findings().collect::<Vec<_>>());
}

#[test]
fn a_worker_that_may_continue_finishes_its_runs_and_registers_again() {
    with_three_nodes(async |mut simulation| {
        let (id, host) = start_command(&mut simulation).await;
        let before = worker_id(&simulation, host);
        detach_worker(&simulation, host).await;
        run_ticks(&mut simulation, host, &[Tick::Heartbeat, Tick::StepDetached]).await;
        assert_eq!(
            continuation_reasons(&simulation, id).await,
            ["the worker requests to continue"]
        );
        run_ticks(&mut simulation, host, &[Tick::StepDetached, Tick::StepDetached]).await;
        assert_eq!(
            continuation_reasons(&simulation, id).await,
            ["the worker requests to continue", "the worker may continue"]
        );
        assert_eq!(simulation.state.lock().processes.len(), 1, "it still runs");
        assert_eq!(
            worker_id(&simulation, host),
            before,
            "no new registration while it holds a run"
        );
        simulation.advance(3 * SECOND);
        run_ticks(
            &mut simulation,
            host,
            &[Tick::Renew, Tick::Report, Tick::StepDetached, Tick::StepDetached],
        )
        .await;
        let ended = find_run(&simulation, id).await;
        assert_eq!((ended.state, ended.worker), (RunState::Succeeded, Some(before)));
        let after = worker_id(&simulation, host);
        assert_ne!(after, before);
        run_ticks(&mut simulation, host, &[Tick::Heartbeat]).await;
        let rows = simulation.store.list_workers().await.expect("the database responds");
        assert!(rows.iter().any(|row| row.id == after && row.accepts_work()), "{rows:?}");
        assert!(rows.iter().all(|row| row.id != before), "{rows:?}");
        assert_database_clean(&simulation).await;
    });
}

/// With many runs, a confirmed run must not be lost because confirming the others takes too long.
#[test]
fn a_continuation_request_costs_the_same_for_any_number_of_runs() {
    with_three_nodes(async |mut simulation| {
        let mut runs = Vec::new();
        for _ in 0..6 {
            runs.push(create_due_run(&simulation, "event").await);
        }
        run_ticks(&mut simulation, 0, &[Tick::Plan]).await;
        for host in 0..3 {
            run_ticks(&mut simulation, host, &[Tick::Heartbeat, Tick::StartDue]).await;
        }
        let mut host_runs = Vec::new();
        for id in runs {
            let run = find_run(&simulation, id).await;
            if run.worker == Some(worker_id(&simulation, 1)) && run.state == RunState::Running {
                host_runs.push(id);
            }
        }
        assert!(host_runs.len() > 1, "{host_runs:?}");
        detach_worker(&simulation, 1).await;
        run_ticks(&mut simulation, 1, &[Tick::Heartbeat]).await;
        let exchanges =
            |simulation: &Simulation| std::mem::take(&mut simulation.state.lock().exchanges);
        exchanges(&simulation);
        // Three statements: read the leader, read the workers, mark the runs as CONFIRMING.
        run_ticks(&mut simulation, 1, &[Tick::StepDetached]).await;
        assert_eq!(exchanges(&simulation), 3);
        // Each called node (at most two) reads the leased runs; one statement stores the confirmation.
        run_ticks(&mut simulation, 1, &[Tick::StepDetached]).await;
        assert!((2..=3).contains(&exchanges(&simulation)));
        for id in host_runs {
            assert_eq!(
                continuation_reasons(&simulation, id).await,
                ["the worker requests to continue", "the worker may continue"]
            );
        }
        run_ticks(&mut simulation, 1, &[Tick::StepDetached]).await;
        assert_eq!(simulation.state.lock().stop_requests, 0);
        assert_database_clean(&simulation).await;
    });
}

#[test]
fn a_worker_without_an_answer_stops_its_runs_and_registers_again() {
    with_three_nodes(async |mut simulation| {
        let (id, host) = start_command(&mut simulation).await;
        let before = worker_id(&simulation, host);
        detach_worker(&simulation, host).await;
        simulation.state.lock().frozen = [true; 3];
        run_ticks(&mut simulation, host, &[Tick::Heartbeat, Tick::StepDetached]).await;
        for _ in 0..3 {
            assert_eq!(
                simulation.state.lock().stop_requests,
                0,
                "not before three attempts to get a confirmation"
            );
            run_ticks(&mut simulation, host, &[Tick::StepDetached]).await;
        }
        for _ in 0..4 {
            run_ticks(&mut simulation, host, &[Tick::StepDetached]).await;
            assert_eq!(simulation.state.lock().stop_requests, 1, "exactly one stop request");
        }
        assert_eq!(
            continuation_reasons(&simulation, id).await,
            ["the worker requests to continue"]
        );
        simulation.advance(3 * SECOND);
        run_ticks(&mut simulation, host, &[Tick::Report, Tick::StepDetached, Tick::StepDetached])
            .await;
        assert!(!find_run(&simulation, id).await.state.is_leased());
        let executions = simulation.store.list_executions(id).await.expect("the database responds");
        assert_eq!(executions[0].error_code, Some(AttemptErrorCode::DETACHED));
        assert_ne!(worker_id(&simulation, host), before);
        assert_database_clean(&simulation).await;
    });
}

#[test]
fn only_a_worker_that_answers_no_ping_is_detached() {
    with_three_nodes(async |mut simulation| {
        let (responsive, unresponsive) = (worker_id(&simulation, 1), worker_id(&simulation, 2));
        // Neither sends heartbeats; only one of them answers pings.
        simulation.state.lock().frozen[2] = true;
        for _ in 0..14 {
            simulation.advance(SECOND);
            run_ticks(
                &mut simulation,
                0,
                &[Tick::Heartbeat, Tick::ElectOrRenew, Tick::CheckWorkers],
            )
            .await;
        }
        let rows = simulation.store.list_workers().await.expect("the database responds");
        let detached =
            |id| rows.iter().find(|row| row.id == id).expect("the row exists").detached_at;
        assert!(detached(responsive).is_none() && detached(unresponsive).is_some(), "{rows:?}");
        assert_database_clean(&simulation).await;
    });
}

/// With many workers, one of the heartbeats is always nearly too old.
#[test]
fn worker_checks_have_a_minimum_interval() {
    with_three_nodes(async |mut simulation| {
        let settings =
            simulation.store.load_settings().await.expect("the database responds").settings;
        let (usual, ttl) = (settings.heartbeat_interval(), settings.heartbeat_ttl());
        simulation.advance(ttl.as_micros() as u64 / 2);
        run_ticks(&mut simulation, 0, &[Tick::Heartbeat, Tick::ElectOrRenew]).await;
        simulation.advance(ttl.as_micros() as u64 / 2 - 1_000);
        let leader =
            Arc::clone(&simulation.hosts[0].incarnation.as_ref().expect("the node runs").leader);
        let next =
            leader.detach_unresponsive_workers(&settings).await.expect("the database responds");
        assert_eq!(next, usual / 4, "a millisecond before the other heartbeats are too old");
    });
}

#[test]
fn a_database_outage_detaches_no_worker() {
    with_three_nodes(async |mut simulation| {
        simulation.advance(15 * SECOND);
        // The leader is the first to reach the database again; the others fail its pings only for a short time.
        simulation.state.lock().frozen = [false, true, true];
        run_ticks(
            &mut simulation,
            0,
            &[Tick::ElectOrRenew, Tick::ElectOrRenew, Tick::CheckWorkers],
        )
        .await;
        simulation.advance(SECOND);
        run_ticks(&mut simulation, 0, &[Tick::Heartbeat, Tick::CheckWorkers]).await;
        simulation.state.lock().frozen = [false; 3];
        run_ticks(&mut simulation, 1, &[Tick::Heartbeat]).await;
        run_ticks(&mut simulation, 2, &[Tick::Heartbeat]).await;
        for _ in 0..8 {
            simulation.advance(SECOND);
            for host in 0..3 {
                run_ticks(&mut simulation, host, &[Tick::Heartbeat]).await;
            }
            run_ticks(&mut simulation, 0, &[Tick::ElectOrRenew, Tick::CheckWorkers]).await;
        }
        let rows = simulation.store.list_workers().await.expect("the database responds");
        assert!(rows.iter().all(tasuki_store::WorkerRecord::accepts_work), "{rows:?}");
    });
}

#[test]
fn an_unseen_leader_that_answers_no_ping_is_demoted() {
    with_three_nodes(async |mut simulation| {
        let first = simulation.store.get_leader_record().await.expect("the database responds");
        let role = |simulation: &Simulation, host: usize| {
            simulation.hosts[host].incarnation.as_ref().expect("the node runs").leader.role()
        };
        assert_eq!(
            [0, 1, 2].map(|host| role(&simulation, host)),
            [ClusterRole::Leader, ClusterRole::Subleader, ClusterRole::Subleader]
        );
        for answers in [true, false] {
            simulation.state.lock().frozen[0] = !answers;
            for _ in 0..8 {
                simulation.advance(SECOND);
                // It renews its lease in the database but does not publish itself to the coordinator.
                let (me, pace) = (worker_id(&simulation, 0), Duration::from_secs(1));
                let renewed =
                    simulation.store.renew_leadership(me, first.epoch, 5 * pace, pace).await;
                assert!(renewed.is_ok());
                for host in 1..3 {
                    run_ticks(
                        &mut simulation,
                        host,
                        &[Tick::Heartbeat, Tick::CheckLeader, Tick::ElectOrRenew],
                    )
                    .await;
                }
            }
            let now = simulation.store.get_leader_record().await.expect("the database responds");
            match answers {
                true => assert_eq!(now.epoch, first.epoch),
                false => {
                    assert!(now.epoch > first.epoch && now.holder != first.holder, "{now:?}");
                    assert!(now.lease_until > now.clock, "{now:?}");
                }
            }
        }
        // It resumes: all its writes as leader are fenced.
        simulation.state.lock().frozen[0] = false;
        create_due_run(&simulation, "event").await;
        run_ticks(
            &mut simulation,
            0,
            &[Tick::Plan, Tick::Recover, Tick::CheckWorkers, Tick::ElectOrRenew],
        )
        .await;
        assert_ne!(role(&simulation, 0), ClusterRole::Leader);
        assert_database_clean(&simulation).await;
    });
}

#[test]
fn a_lost_confirmation_stops_no_confirmed_run() {
    with_three_nodes(async |mut simulation| {
        let (id, host) = start_command(&mut simulation).await;
        detach_worker(&simulation, host).await;
        run_ticks(&mut simulation, host, &[Tick::Heartbeat, Tick::StepDetached]).await;
        // Only the leader answers. The confirmation is stored, but the database's response is lost.
        simulation.state.lock().frozen = [false, true, true];
        simulation.state.lock().next_faults = [Fault::None, Fault::ResponseLost].into();
        run_ticks(&mut simulation, host, &[Tick::StepDetached]).await;
        assert!(simulation.state.lock().next_faults.is_empty());
        assert_eq!(
            continuation_reasons(&simulation, id).await.last().map(String::as_str),
            Some("the worker may continue")
        );
        run_ticks(
            &mut simulation,
            host,
            &[Tick::StepDetached, Tick::StepDetached, Tick::StepDetached],
        )
        .await;
        assert_nothing_stopped(&simulation);
        assert_database_clean(&simulation).await;
    });
}

#[test]
fn a_retried_registration_creates_one_worker() {
    with_three_nodes(async |mut simulation| {
        let before = worker_id(&simulation, 1);
        detach_worker(&simulation, 1).await;
        run_ticks(&mut simulation, 1, &[Tick::Heartbeat, Tick::StepDetached, Tick::StepDetached])
            .await;
        // Two reads succeed; the third exchange, the registration, takes effect but its response is lost.
        simulation.state.lock().next_faults =
            [Fault::None, Fault::None, Fault::ResponseLost].into();
        run_ticks(&mut simulation, 1, &[Tick::StepDetached]).await;
        assert!(simulation.state.lock().next_faults.is_empty());
        assert_eq!(worker_id(&simulation, 1), before, "not yet");
        run_ticks(&mut simulation, 1, &[Tick::StepDetached, Tick::Heartbeat]).await;
        let after = worker_id(&simulation, 1);
        assert_ne!(after, before);
        let rows = simulation.store.list_workers().await.expect("the database responds");
        let node_rows: Vec<_> = rows.iter().filter(|row| row.node.as_str() == "node-1").collect();
        assert!(
            node_rows.len() == 1 && node_rows[0].id == after && node_rows[0].accepts_work(),
            "{rows:?}"
        );
    });
}

#[test]
fn a_run_being_started_is_confirmed_once_its_state_is_known() {
    with_three_nodes(async |mut simulation| {
        let id = create_due_run(&simulation, "event").await;
        run_ticks(&mut simulation, 0, &[Tick::Plan]).await;
        let run = find_run(&simulation, id).await;
        let host = (1..3).find(|host| Some(worker_id(&simulation, *host)) == run.worker);
        let host = host.expect("one of them holds it");
        simulation.state.lock().next_faults = [Fault::ResponseLost].into();
        run_ticks(&mut simulation, host, &[Tick::StartDue]).await;
        detach_worker(&simulation, host).await;
        run_ticks(
            &mut simulation,
            host,
            &[Tick::Heartbeat, Tick::StepDetached, Tick::StepDetached],
        )
        .await;
        assert_eq!(
            continuation_reasons(&simulation, id).await,
            [] as [&str; 0],
            "it is not known yet whether the run was started"
        );
        run_ticks(
            &mut simulation,
            host,
            &[Tick::Renew, Tick::StepDetached, Tick::StepDetached, Tick::StepDetached],
        )
        .await;
        assert_eq!(
            continuation_reasons(&simulation, id).await,
            ["the worker requests to continue", "the worker may continue"]
        );
        assert_nothing_stopped(&simulation);
    });
}

#[test]
fn an_election_lock_without_a_leader_does_not_block_others() {
    with_three_nodes(async |mut simulation| {
        let (coordinator, first) = (Arc::clone(&simulation.coordinator), worker_id(&simulation, 1));
        simulation.hosts[0].crash(&simulation.state);
        for _ in 0..16 {
            simulation.advance(SECOND);
            // This worker holds the election lock but cannot write to the database.
            let _ = coordinator.acquire_election_lock(first, Duration::from_secs(5)).await;
            run_ticks(
                &mut simulation,
                2,
                &[Tick::Heartbeat, Tick::CheckLeader, Tick::ElectOrRenew],
            )
            .await;
        }
        let now = simulation.store.get_leader_record().await.expect("the database responds");
        assert_eq!(
            (now.holder, now.lease_until > now.clock),
            (Some(worker_id(&simulation, 2)), true)
        );
    });
}

#[test]
fn a_demoted_leader_lets_others_go_first() {
    with_three_nodes(async |mut simulation| {
        let first = simulation.store.get_leader_record().await.expect("the database responds");
        assert!(
            simulation
                .store
                .demote_leader("user", first.epoch, "a test")
                .await
                .expect("the database responds")
        );
        for _ in 0..4 {
            simulation.advance(SECOND);
            for host in 0..3 {
                run_ticks(
                    &mut simulation,
                    host,
                    &[Tick::Heartbeat, Tick::CheckLeader, Tick::ElectOrRenew],
                )
                .await;
            }
        }
        let now = simulation.store.get_leader_record().await.expect("the database responds");
        assert!(now.lease_until > now.clock && now.holder != first.holder, "{now:?}");
    });
}

#[test]
fn a_leader_never_seen_is_not_demoted_for_an_earlier_one() {
    with_three_nodes(async |mut simulation| {
        simulation.hosts[0].crash(&simulation.state);
        simulation.advance(10 * SECOND);
        // A leader without a coordinator and without an address.
        let lone_worker = worker_id(&simulation, 1);
        let seen = simulation.store.get_leader_record().await.expect("the database responds").epoch;
        let ttl = Duration::from_secs(60);
        let epoch = simulation
            .store
            .take_leadership(lone_worker, seen, seen, ttl)
            .await
            .expect("the database responds");
        simulation.state.lock().frozen[1] = true;
        for _ in 0..10 {
            simulation.advance(SECOND);
            run_ticks(&mut simulation, 2, &[Tick::Heartbeat, Tick::CheckLeader]).await;
        }
        let now = simulation.store.get_leader_record().await.expect("the database responds");
        assert_eq!((Some(now.epoch), now.holder), (epoch, Some(lone_worker)));
    });
}
