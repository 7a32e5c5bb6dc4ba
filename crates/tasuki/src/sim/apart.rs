//! A worker that is cut off, and a leader nobody sees, each as a short story.

use std::sync::Arc;
use std::time::Duration;

use tasuki_core::{ErrorCode, RunId, RunState};
use tasuki_store::{Writer, Fault, Run};

use super::host::Tick;
use super::stage::{SECOND, Stage};
use super::symptoms::task;
use super::world::World;
use crate::node::coordination::coordinate::Role;

/// Three nodes that are up, with a coordinator in memory; the first of them leads.
fn story(tell: impl AsyncFnOnce(World)) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let stage = Stage::new(1, false);
        stage.inside().calm = true;
        let mut world = World::empty(stage).await.expect("a world");
        world.use_memory();
        for host in 0..3 {
            world.boot(host).await.expect("a node");
        }
        on(&mut world, 0, &[Tick::Lead]).await;
        for host in 0..3 {
            on(&mut world, host, &[Tick::Pulse, Tick::Watch]).await;
        }
        tell(world).await;
    });
}

async fn on(world: &mut World, host: usize, ticks: &[Tick]) {
    for tick in ticks {
        world.tick(host, *tick).await.expect("an answer");
    }
    while !world.stage.inside().letters.is_empty() {
        world.deliver();
    }
}

async fn run(world: &World, run: RunId) -> Run {
    world.store.run(run).await.expect("an answer").expect("it was made")
}

/// What is noted of a run about going on.
async fn told(world: &World, run: RunId) -> Vec<String> {
    let notes = world.store.notes(run).await.expect("an answer");
    notes.into_iter().filter_map(|note| note.reason).collect()
}

/// A command that runs on a node that does not lead: where.
async fn running(world: &mut World) -> (RunId, usize) {
    let id = task(world, "event").await;
    on(world, 0, &[Tick::Plan]).await;
    for host in 0..3 {
        on(world, host, &[Tick::Pulse, Tick::StartDue]).await;
    }
    let carried = run(world, id).await;
    assert_eq!(carried.state, RunState::Running);
    let host = (0..3).find(|host| Some(worker(world, *host)) == carried.worker);
    let host = host.expect("one of them carries it");
    assert_ne!(host, 0, "a leader only plans while others can work");
    (id, host)
}

fn worker(world: &World, host: usize) -> tasuki_core::WorkerId {
    world.hosts[host].life.as_ref().expect("it lives").worker.id()
}

async fn detach(world: &World, host: usize) {
    let id = worker(world, host);
    let cut = world.store.detach_worker(Writer::Api, "somebody", id, "a test").await;
    assert!(cut.expect("an answer"));
}

/// Nothing was told to stop.
fn runs_on(world: &World) {
    let inside = world.stage.inside();
    assert_eq!((inside.stops, inside.processes.len()), (0, 1));
}

async fn is_clean(world: &World) {
    let report = world.store.doctor(|| world.stage.database_time()).await.expect("an answer");
    assert!(report.is_clean(), "{:?}", report.findings().collect::<Vec<_>>());
}

#[test]
fn who_may_go_on_ends_its_work_and_begins_anew() {
    story(async |mut world| {
        let (id, host) = running(&mut world).await;
        let before = worker(&world, host);
        detach(&world, host).await;
        on(&mut world, host, &[Tick::Pulse, Tick::Apart]).await;
        assert_eq!(told(&world, id).await, ["asks whether it may go on"]);
        on(&mut world, host, &[Tick::Apart, Tick::Apart]).await;
        assert_eq!(told(&world, id).await, ["asks whether it may go on", "may go on"]);
        assert_eq!(world.stage.inside().processes.len(), 1, "it runs on");
        assert_eq!(worker(&world, host), before, "not while it carries something");
        world.pass(3 * SECOND);
        on(&mut world, host, &[Tick::Renew, Tick::Report, Tick::Apart, Tick::Apart]).await;
        let ended = run(&world, id).await;
        assert_eq!((ended.state, ended.worker), (RunState::Succeeded, Some(before)));
        let after = worker(&world, host);
        assert_ne!(after, before);
        on(&mut world, host, &[Tick::Pulse]).await;
        let rows = world.store.workers().await.expect("an answer");
        assert!(rows.iter().any(|row| row.id == after && row.is_active()), "{rows:?}");
        assert!(rows.iter().all(|row| row.id != before), "{rows:?}");
        is_clean(&world).await;
    });
}

/// However many it carries: what it is allowed to keep must not be lost to the time that the others take.
#[test]
fn what_it_costs_to_ask_does_not_grow_with_what_runs() {
    story(async |mut world| {
        let mut runs = Vec::new();
        for _ in 0..6 {
            runs.push(task(&world, "event").await);
        }
        on(&mut world, 0, &[Tick::Plan]).await;
        for host in 0..3 {
            on(&mut world, host, &[Tick::Pulse, Tick::StartDue]).await;
        }
        let mut here = Vec::new();
        for id in runs {
            let carried = run(&world, id).await;
            if carried.worker == Some(worker(&world, 1)) && carried.state == RunState::Running {
                here.push(id);
            }
        }
        assert!(here.len() > 1, "{here:?}");
        detach(&world, 1).await;
        on(&mut world, 1, &[Tick::Pulse]).await;
        let exchanges = |world: &World| std::mem::take(&mut world.stage.inside().exchanges);
        exchanges(&world);
        // Who leads, who is there; the marks.
        on(&mut world, 1, &[Tick::Apart]).await;
        assert_eq!(exchanges(&world), 3);
        // Each of the two who are asked looks what is carried; what it may go on with.
        on(&mut world, 1, &[Tick::Apart]).await;
        assert!((2..=3).contains(&exchanges(&world)));
        for id in here {
            assert_eq!(told(&world, id).await, ["asks whether it may go on", "may go on"]);
        }
        on(&mut world, 1, &[Tick::Apart]).await;
        assert_eq!(world.stage.inside().stops, 0);
        is_clean(&world).await;
    });
}

#[test]
fn who_reaches_nobody_stops_its_work_and_begins_anew() {
    story(async |mut world| {
        let (id, host) = running(&mut world).await;
        let before = worker(&world, host);
        detach(&world, host).await;
        world.stage.inside().frozen = [true; 3];
        on(&mut world, host, &[Tick::Pulse, Tick::Apart]).await;
        for _ in 0..3 {
            assert_eq!(world.stage.inside().stops, 0, "not before it has asked three times");
            on(&mut world, host, &[Tick::Apart]).await;
        }
        for _ in 0..4 {
            on(&mut world, host, &[Tick::Apart]).await;
            assert_eq!(world.stage.inside().stops, 1, "told to stop once");
        }
        assert_eq!(told(&world, id).await, ["asks whether it may go on"]);
        world.pass(3 * SECOND);
        on(&mut world, host, &[Tick::Report, Tick::Apart, Tick::Apart]).await;
        assert!(!run(&world, id).await.state.is_carried());
        let tried = world.store.executions(id).await.expect("an answer");
        assert_eq!(tried[0].error_code, Some(ErrorCode::DETACHED));
        assert_ne!(worker(&world, host), before);
        is_clean(&world).await;
    });
}

#[test]
fn a_silent_worker_is_detached_and_one_that_answers_is_not() {
    story(async |mut world| {
        let (deaf, away) = (worker(&world, 1), worker(&world, 2));
        // Neither is heard of in the database; one of them answers when it is called.
        world.stage.inside().frozen[2] = true;
        for _ in 0..14 {
            world.pass(SECOND);
            on(&mut world, 0, &[Tick::Pulse, Tick::Lead, Tick::LookAfter]).await;
        }
        let rows = world.store.workers().await.expect("an answer");
        let detached = |id| rows.iter().find(|row| row.id == id).expect("it is there").detached_at;
        assert!(detached(deaf).is_none() && detached(away).is_some(), "{rows:?}");
        is_clean(&world).await;
    });
}

/// Where there are many, the heartbeat of somebody is always nearly too old.
#[test]
fn workers_are_not_looked_after_all_the_time() {
    story(async |mut world| {
        let settings = world.store.settings().await.expect("an answer").settings;
        let (usual, ttl) = (settings.heartbeat_interval(), settings.heartbeat_ttl());
        world.pass(ttl.as_micros() as u64 / 2);
        on(&mut world, 0, &[Tick::Pulse, Tick::Lead]).await;
        world.pass(ttl.as_micros() as u64 / 2 - 1_000);
        let leader = Arc::clone(&world.hosts[0].life.as_ref().expect("it lives").leader);
        let next = leader.look_after(&settings).await.expect("an answer");
        assert_eq!(next, usual / 4, "a millisecond before the others fall silent");
    });
}

#[test]
fn a_database_that_was_away_makes_nobody_silent() {
    story(async |mut world| {
        world.pass(15 * SECOND);
        // The leader is the first to be back, and calls nobody in vain for long enough.
        world.stage.inside().frozen = [false, true, true];
        on(&mut world, 0, &[Tick::Lead, Tick::Lead, Tick::LookAfter]).await;
        world.pass(SECOND);
        on(&mut world, 0, &[Tick::Pulse, Tick::LookAfter]).await;
        world.stage.inside().frozen = [false; 3];
        on(&mut world, 1, &[Tick::Pulse]).await;
        on(&mut world, 2, &[Tick::Pulse]).await;
        for _ in 0..8 {
            world.pass(SECOND);
            for host in 0..3 {
                on(&mut world, host, &[Tick::Pulse]).await;
            }
            on(&mut world, 0, &[Tick::Lead, Tick::LookAfter]).await;
        }
        let rows = world.store.workers().await.expect("an answer");
        assert!(rows.iter().all(tasuki_store::Worker::is_active), "{rows:?}");
    });
}

#[test]
fn a_leader_that_nobody_sees_and_that_does_not_answer_is_deposed() {
    story(async |mut world| {
        let first = world.store.leader().await.expect("an answer");
        let role = |world: &World, host: usize| {
            world.hosts[host].life.as_ref().expect("it lives").leader.role()
        };
        assert_eq!(
            [0, 1, 2].map(|host| role(&world, host)),
            [Role::Leader, Role::Subleader, Role::Subleader]
        );
        for answers in [true, false] {
            world.stage.inside().frozen[0] = !answers;
            for _ in 0..8 {
                world.pass(SECOND);
                // It renews in the database, and is not seen anywhere else.
                let (me, pace) = (worker(&world, 0), Duration::from_secs(1));
                let renewed = world.store.renew_term(me, first.epoch, 5 * pace, pace).await;
                assert!(renewed.is_ok());
                for host in 1..3 {
                    on(&mut world, host, &[Tick::Pulse, Tick::Watch, Tick::Lead]).await;
                }
            }
            let now = world.store.leader().await.expect("an answer");
            match answers {
                true => assert_eq!(now.epoch, first.epoch),
                false => {
                    assert!(now.epoch > first.epoch && now.holder != first.holder, "{now:?}");
                    assert!(now.lease_until > now.clock, "{now:?}");
                }
            }
        }
        // It wakes up: whatever it writes as a leader is too late.
        world.stage.inside().frozen[0] = false;
        task(&world, "event").await;
        on(&mut world, 0, &[Tick::Plan, Tick::Recover, Tick::LookAfter, Tick::Lead]).await;
        assert_ne!(role(&world, 0), Role::Leader);
        is_clean(&world).await;
    });
}

#[test]
fn an_answer_that_was_lost_stops_nothing_that_may_go_on() {
    story(async |mut world| {
        let (id, host) = running(&mut world).await;
        detach(&world, host).await;
        on(&mut world, host, &[Tick::Pulse, Tick::Apart]).await;
        // The leader alone answers. What it says is written down, and that is not heard.
        world.stage.inside().frozen = [false, true, true];
        world.stage.inside().next_faults = [Fault::None, Fault::Unanswered].into();
        on(&mut world, host, &[Tick::Apart]).await;
        assert!(world.stage.inside().next_faults.is_empty());
        assert_eq!(told(&world, id).await.last().map(String::as_str), Some("may go on"));
        on(&mut world, host, &[Tick::Apart, Tick::Apart, Tick::Apart]).await;
        runs_on(&world);
        is_clean(&world).await;
    });
}

#[test]
fn who_begins_anew_is_one_however_often_it_has_to_try() {
    story(async |mut world| {
        let before = worker(&world, 1);
        detach(&world, 1).await;
        on(&mut world, 1, &[Tick::Pulse, Tick::Apart, Tick::Apart]).await;
        // Both are looked at, and then: it is registered, which is not heard.
        world.stage.inside().next_faults = [Fault::None, Fault::None, Fault::Unanswered].into();
        on(&mut world, 1, &[Tick::Apart]).await;
        assert!(world.stage.inside().next_faults.is_empty());
        assert_eq!(worker(&world, 1), before, "not yet");
        on(&mut world, 1, &[Tick::Apart, Tick::Pulse]).await;
        let after = worker(&world, 1);
        assert_ne!(after, before);
        let rows = world.store.workers().await.expect("an answer");
        let here: Vec<_> = rows.iter().filter(|row| row.node.as_str() == "node-1").collect();
        assert!(here.len() == 1 && here[0].id == after && here[0].is_active(), "{rows:?}");
    });
}

#[test]
fn what_was_being_started_is_asked_about_when_it_is_known() {
    story(async |mut world| {
        let id = task(&world, "event").await;
        on(&mut world, 0, &[Tick::Plan]).await;
        let carried = run(&world, id).await;
        let host = (1..3).find(|host| Some(worker(&world, *host)) == carried.worker);
        let host = host.expect("one of them has it");
        world.stage.inside().next_faults = [Fault::Unanswered].into();
        on(&mut world, host, &[Tick::StartDue]).await;
        detach(&world, host).await;
        on(&mut world, host, &[Tick::Pulse, Tick::Apart, Tick::Apart]).await;
        assert_eq!(told(&world, id).await, [] as [&str; 0], "nobody knows yet whether it runs");
        on(&mut world, host, &[Tick::Renew, Tick::Apart, Tick::Apart, Tick::Apart]).await;
        assert_eq!(told(&world, id).await, ["asks whether it may go on", "may go on"]);
        runs_on(&world);
    });
}

#[test]
fn who_has_the_lock_and_cannot_lead_keeps_nobody_from_it() {
    story(async |mut world| {
        let (lock, first) = (Arc::clone(&world.coordinator), worker(&world, 1));
        world.hosts[0].crash(&world.stage);
        for _ in 0..16 {
            world.pass(SECOND);
            // It would lead, and cannot write.
            let _ = lock.stand(first, Duration::from_secs(5)).await;
            on(&mut world, 2, &[Tick::Pulse, Tick::Watch, Tick::Lead]).await;
        }
        let now = world.store.leader().await.expect("an answer");
        assert_eq!((now.holder, now.lease_until > now.clock), (Some(worker(&world, 2)), true));
    });
}

#[test]
fn a_leader_that_was_sent_away_lets_others_go_first() {
    story(async |mut world| {
        let first = world.store.leader().await.expect("an answer");
        assert!(world.store.demote("somebody", first.epoch, "a test").await.expect("an answer"));
        for _ in 0..4 {
            world.pass(SECOND);
            for host in 0..3 {
                on(&mut world, host, &[Tick::Pulse, Tick::Watch, Tick::Lead]).await;
            }
        }
        let now = world.store.leader().await.expect("an answer");
        assert!(now.lease_until > now.clock && now.holder != first.holder, "{now:?}");
    });
}

#[test]
fn who_leads_and_was_never_seen_is_not_deposed_for_who_was() {
    story(async |mut world| {
        world.hosts[0].crash(&world.stage);
        world.pass(10 * SECOND);
        // One that meets nobody: no port, no coordinator.
        let lonely = worker(&world, 1);
        let seen = world.store.leader().await.expect("an answer").epoch;
        let ttl = Duration::from_secs(60);
        let minted = world.store.mint(lonely, seen, seen, ttl).await.expect("an answer");
        world.stage.inside().frozen[1] = true;
        for _ in 0..10 {
            world.pass(SECOND);
            on(&mut world, 2, &[Tick::Pulse, Tick::Watch]).await;
        }
        let now = world.store.leader().await.expect("an answer");
        assert_eq!((Some(now.epoch), now.holder), (minted, Some(lonely)));
    });
}
