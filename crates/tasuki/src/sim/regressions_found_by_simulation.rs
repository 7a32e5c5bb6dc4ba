//! Regression tests: each bug that a simulation found, as a short test of its own.

use std::sync::Arc;

use tasuki_core::{RunId, RunState};
use tasuki_store::{ClaimRequest, Fault, NewRun, Writer};

use super::host::Tick;
use super::rng::Rng;
use super::state::{SECOND, SimState};
use super::steps::Simulation;
use super::user_actions;

/// Runs a test with one node.
fn with_one_node(test: impl AsyncFnOnce(Simulation)) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the runtime starts");
    runtime.block_on(async {
        let state = SimState::new(1, false);
        state.lock().no_faults = true;
        let mut simulation = Simulation::without_jobs(state).await.expect("the simulation starts");
        simulation.hosts.truncate(1);
        simulation.start_or_stop_node(0).await.expect("the node starts");
        test(simulation).await;
    });
}

/// Creates a run of this job that is due now.
pub(super) async fn create_due_run(simulation: &Simulation, job: &str) -> RunId {
    let name = job.parse().expect("the name is valid");
    if simulation.store.find_job(&name).await.expect("the database responds").is_none() {
        let created = user_actions::create_job_if_absent(
            &simulation.state,
            &simulation.store,
            job,
            &mut Rng::new(1),
        )
        .await;
        created.expect("the job is created");
    }
    let job = simulation
        .store
        .find_job(&name)
        .await
        .expect("the database responds")
        .expect("the row exists");
    let run = NewRun::task(&job.newest);
    let created = simulation
        .store
        .create_or_find_runs(Writer::Api, &[run])
        .await
        .expect("the run is created");
    created[0].run
}

async fn run_ticks(simulation: &mut Simulation, ticks: &[Tick]) {
    for tick in ticks {
        simulation.tick(0, *tick).await.expect("the database responds");
    }
    while !simulation.state.lock().orders_in_flight.is_empty() {
        simulation.deliver_order();
    }
}

fn count_launched(simulation: &Simulation) -> usize {
    simulation.state.lock().ever_launched.len()
}

/// From now on every exchange pauses until it is polled again.
fn pause_every_exchange(simulation: &Simulation) {
    let inner = &mut *simulation.state.lock();
    (inner.no_faults, inner.loss_per_mille, inner.pause_per_mille) = (false, 0, 1_000);
}

#[test]
fn an_overdue_run_is_started_and_not_reassigned() {
    with_one_node(async |mut simulation| {
        let run = create_due_run(&simulation, "event").await;
        simulation.advance(20 * SECOND);
        run_ticks(&mut simulation, &[Tick::Heartbeat, Tick::ElectOrRenew, Tick::Plan]).await;
        simulation.advance(2 * SECOND);
        run_ticks(&mut simulation, &[Tick::StartDue]).await;
        let run = simulation
            .store
            .find_run(run)
            .await
            .expect("the database responds")
            .expect("the row exists");
        assert_eq!((run.state, run.counters.releases), (RunState::Running, 0));
        assert_eq!(count_launched(&simulation), 1);
    });
}

#[test]
fn the_last_leader_leads_again_when_nobody_does() {
    with_one_node(async |mut simulation| {
        run_ticks(&mut simulation, &[Tick::ElectOrRenew]).await;
        let first = simulation.store.get_leader_record().await.expect("the database responds");
        assert!(first.lease_until > first.clock);
        simulation.advance(60 * SECOND);
        run_ticks(&mut simulation, &[Tick::ElectOrRenew, Tick::ElectOrRenew]).await;
        let second = simulation.store.get_leader_record().await.expect("the database responds");
        assert!(second.lease_until > second.clock, "{second:?}");
        let demoted = simulation.store.demote_leader("user", second.epoch, "a test").await;
        assert!(demoted.expect("the database responds"));
        simulation.advance(2 * SECOND);
        // Other workers may try first.
        run_ticks(&mut simulation, &[Tick::ElectOrRenew]).await;
        simulation.advance(2 * SECOND);
        run_ticks(&mut simulation, &[Tick::ElectOrRenew]).await;
        let third = simulation.store.get_leader_record().await.expect("the database responds");
        assert!(third.epoch > second.epoch && third.lease_until > third.clock, "{third:?}");
    });
}

#[test]
fn concurrent_renewals_launch_an_unanswered_claim_once() {
    with_one_node(async |simulation| {
        create_due_run(&simulation, "call").await;
        // The poll gets its response, the claim does not.
        simulation.state.lock().next_faults = [Fault::None, Fault::ResponseLost].into();
        let incarnation = simulation.hosts[0].incarnation.as_ref().expect("the node runs");
        let result = simulation.drive_until_pause(&mut incarnation.tick(Tick::Claim)).await;
        assert!(result.is_some_and(|result| result.is_err()));
        pause_every_exchange(&simulation);
        let mut ticks = [incarnation.tick(Tick::Renew), incarnation.tick(Tick::RenewAll)];
        let mut done = [false; 2];
        while done != [true; 2] {
            for (tick, done) in ticks.iter_mut().zip(&mut done) {
                *done = *done || simulation.drive_until_pause(tick).await.is_some();
            }
        }
        let failure = simulation.state.lock().failure.take();
        assert_eq!((failure, count_launched(&simulation)), (None, 1));
    });
}

/// The claim got no response, and the worker then read that the lease does not exist. Only after that the claim took
/// effect.
#[test]
fn a_claim_that_lands_late_is_launched() {
    with_one_node(async |mut simulation| {
        let run = create_due_run(&simulation, "call").await;
        // The poll gets its response, the claim is delayed on its way.
        simulation.state.lock().next_faults = [Fault::None, Fault::RequestLost].into();
        let incarnation = simulation.hosts[0].incarnation.as_ref().expect("the node runs");
        let result = simulation.drive_until_pause(&mut incarnation.tick(Tick::Claim)).await;
        assert!(result.is_some_and(|result| result.is_err()));
        let worker = Arc::clone(&incarnation.worker);
        run_ticks(&mut simulation, &[Tick::RenewAll]).await;
        let [token] = worker.given_up_claims()[..] else {
            panic!("{:?}", worker.given_up_claims())
        };
        let job = simulation
            .store
            .find_job(&"call".parse().expect("the name is valid"))
            .await
            .expect("the database responds");
        let lane = &job.expect("the row exists").newest.spec.lane;
        let lease_ttl = worker.settings().lease_ttl();
        let request =
            ClaimRequest { worker: worker.id(), token, lane, max_runs: 1, lease_ttl, after: None };
        simulation.store.claim(&request).await.expect("the claim takes effect");
        run_ticks(&mut simulation, &[Tick::Heartbeat, Tick::RenewAll]).await;
        assert_eq!((count_launched(&simulation), worker.given_up_claims().len()), (1, 0));
        let run = simulation
            .store
            .find_run(run)
            .await
            .expect("the database responds")
            .expect("the row exists");
        assert_eq!((run.state, run.counters.attempt_no), (RunState::Running, 1));
    });
}

/// The submitter gets an error because the result is unknown; the worker still executes the tasks that were created.
#[test]
fn an_unanswered_local_submit_is_launched_once() {
    with_one_node(async |mut simulation| {
        create_due_run(&simulation, "call").await;
        run_ticks(&mut simulation, &[Tick::Claim, Tick::Claim]).await;
        assert_eq!(count_launched(&simulation), 1);
        // The job is read; the tasks are created, but the response is lost.
        simulation.state.lock().next_faults = [Fault::None, Fault::ResponseLost].into();
        let incarnation = simulation.hosts[0].incarnation.as_ref().expect("the node runs");
        let result = simulation.drive_until_pause(&mut incarnation.tick(Tick::LocalSubmit)).await;
        assert!(result.is_some_and(|result| result.is_err()));
        assert_eq!(count_launched(&simulation), 1);
        run_ticks(&mut simulation, &[Tick::RenewAll, Tick::Renew]).await;
        let failure = simulation.state.lock().failure.take();
        assert_eq!((failure, count_launched(&simulation)), (None, 3));
    });
}

#[test]
fn a_lease_is_trusted_for_the_ttl_that_was_requested() {
    with_one_node(async |mut simulation| {
        create_due_run(&simulation, "event").await;
        run_ticks(&mut simulation, &[Tick::Heartbeat, Tick::ElectOrRenew, Tick::Plan]).await;
        let sent = simulation.state.lock().boottime(0);
        pause_every_exchange(&simulation);
        let mut start_tick =
            simulation.hosts[0].incarnation.as_ref().expect("the node runs").tick(Tick::StartDue);
        assert!(
            simulation.drive_until_pause(&mut start_tick).await.is_none(),
            "it pauses before the request"
        );
        assert!(
            simulation.drive_until_pause(&mut start_tick).await.is_none(),
            "it pauses before the response"
        );
        let settings = simulation.store.load_settings().await.expect("the database responds");
        let changes = [("lease_ttl", "100s")];
        let _ = simulation.store.change_settings("user", settings.version, &changes).await;
        simulation.state.lock().no_faults = true;
        run_ticks(&mut simulation, &[Tick::Heartbeat]).await;
        while simulation.drive_until_pause(&mut start_tick).await.is_none() {}
        let until: Vec<u64> = simulation.state.lock().leases.values().copied().collect();
        assert_eq!(
            until,
            [sent + settings.settings.sigkill_after_last_renewal().as_micros() as u64]
        );
    });
}

#[test]
fn the_recorded_exit_of_a_lost_run_is_removed_despite_a_repeated_order() {
    with_one_node(async |mut simulation| {
        create_due_run(&simulation, "event").await;
        run_ticks(&mut simulation, &[Tick::Heartbeat, Tick::ElectOrRenew]).await;
        simulation.tick(0, Tick::Plan).await.expect("the database responds");
        let repeated_order = simulation.state.lock().orders_in_flight[0].order.clone();
        run_ticks(&mut simulation, &[Tick::StartDue]).await;
        run_ticks(&mut simulation, &[Tick::StartDue]).await;
        assert_eq!(count_launched(&simulation), 1);
        simulation.advance(60 * SECOND);
        run_ticks(
            &mut simulation,
            &[Tick::ElectOrRenew, Tick::ElectOrRenew, Tick::Recover, Tick::Renew],
        )
        .await;
        simulation.hosts[0]
            .incarnation
            .as_ref()
            .expect("the node runs")
            .worker
            .accept_order(&repeated_order);
        run_ticks(&mut simulation, &[Tick::Report]).await;
        assert_eq!(simulation.state.lock().recorded_exits.len(), 0);
    });
}
