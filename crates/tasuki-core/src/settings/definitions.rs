//! The definitions of all settings.

use std::time::Duration;

use super::SettingsProblem;
use super::value::{SettingValue, SlotSetting};
use crate::InvalidInput;

/// The description of one setting for help texts and pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingDefinition {
    /// The name, the same in code, database, REST and CLI.
    pub name: &'static str,
    /// The default value.
    pub default: String,
    /// The minimum.
    pub min: String,
    /// The maximum.
    pub max: String,
    /// The format of a value.
    pub expected: &'static str,
    /// The help text in English: what the setting does and when to change it.
    pub english: &'static str,
    /// The help text in Japanese.
    pub japanese: &'static str,
}

/// Generates the struct `Settings`, its defaults and the access by name from one list.
macro_rules! settings {
    ($(
        $(#[doc = $english:literal])+
        $name:ident: $type:ty = $default:expr, $min:expr, $max:expr, $japanese:literal;
    )+) => {
        /// A valid set of settings: all rules between them hold. See [`Settings::with_changes`].
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Settings {
            $(pub(super) $name: $type,)+
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }

        impl Settings {
            /// The definitions of all settings, in the order of the reference page.
            pub fn definitions() -> Vec<SettingDefinition> {
                vec![$(SettingDefinition {
                    name: stringify!($name),
                    default: <$type as SettingValue>::format($default),
                    min: <$type as SettingValue>::format($min),
                    max: <$type as SettingValue>::format($max),
                    expected: <$type as SettingValue>::EXPECTED,
                    english: concat!($($english),+).trim_ascii(),
                    japanese: $japanese,
                },)+]
            }

            $(
                $(#[doc = $english])+
                pub fn $name(&self) -> $type {
                    self.$name
                }
            )+

            /// The value of the setting with this name as text; `None`: there is no such setting.
            pub fn find_value_text(&self, name: &str) -> Option<String> {
                match name {
                    $(stringify!($name) => Some(self.$name.format()),)+
                    _ => None,
                }
            }

            /// Changes one value within its limits. It does not check the rules between settings, so it
            /// is not public: callers use [`Settings::with_changes`].
            pub(super) fn set(&mut self, name: &str, typed: &str) -> Result<(), SettingsProblem> {
                match name {
                    $(stringify!($name) => {
                        self.$name = parse_in_limits(stringify!($name), typed, $min, $max)?;
                        Ok(())
                    })+
                    _ => Err(SettingsProblem::unknown(name)),
                }
            }
        }
    };
}

fn parse_in_limits<V: SettingValue>(
    name: &'static str,
    typed: &str,
    min: V,
    max: V,
) -> Result<V, SettingsProblem> {
    let fits = |value: &V| value.is_unlimited() || (min <= *value && *value <= max);
    V::parse(typed).filter(fits).ok_or_else(|| {
        let expected = match (min.format(), max.format()) {
            (min, max) if min == "false" && max == "true" => V::EXPECTED.to_owned(),
            (min, max) => format!("{}, from {min} to {max}", V::EXPECTED),
        };
        SettingsProblem::Value(InvalidInput::with_value(name, typed, expected))
    })
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn days(days: u64) -> Duration {
    Duration::from_secs(days * 86_400)
}

settings! {
    /// Interval at which the leader creates and assigns runs. A new run or event wakes the leader earlier,
    /// so this value mainly sets the frequency of maintenance and has little effect on punctuality.
    leader_tick: Duration = s(1), ms(10), s(60),
        "リーダーが実行の作成と割り当てを行う間隔。新しい実行やイベントがあれば間隔を待たずに行うため、この値は主に保守処理の頻度を決め、開始の遅れにはほとんど影響しない。";
    /// The leader creates a run, and assigns it to a worker, this long before the planned time of the run. The
    /// worker then starts the run with its own timer. Increase this value if the election of a new leader may
    /// take longer than this: until there is a new leader, workers start the runs that are already assigned.
    assign_ahead: Duration = s(30), ms(0), s(3_600),
        "リーダーが、予定時刻のどれだけ前に実行を作成してワーカーに割り当てるか。ワーカーは自分のタイマーで実行を開始する。長いほどリーダー交代の影響を受けにくい。";
    /// Interval at which the leader renews its lease.
    leader_renew: Duration = s(1), ms(10), s(60),
        "リーダーが自分のリースを更新する間隔。";
    /// How long the leader's lease is valid without renewal. With a shorter time, another worker replaces a
    /// stopped leader earlier. With a longer time, a slow network is less likely to end the term.
    leader_ttl: Duration = s(5), ms(30), s(300),
        "更新しなくてもリーダーのリースが有効である時間。短いほど、停止したリーダーを別のワーカーが早く引き継ぐ。長いほど、ネットワークの遅延で任期が終わりにくい。";
    /// If the leader cannot renew its lease, it stops acting this long before the lease ends.
    leader_margin: Duration = s(1), ms(0), s(60),
        "リーダーがリースを更新できないとき、リース終了のどれだけ前に動作を止めるか。";
    /// Only with Redis: maximum time since the leader last published its id in Redis. After this time a
    /// subleader calls the leader. If the leader answers none of three calls, the subleader ends the term.
    leader_stale: Duration = s(5), ms(30), s(300),
        "Redis を使うときだけ有効。リーダーが自分の ID を最後に Redis に公開してからこの時間が過ぎると、サブリーダーがリーダーを呼び出す。3回の呼び出しのどれにも応答がなければ、サブリーダーはリーダーの任期を終わらせる。";
    /// Interval at which a worker that is not the leader checks whether the leader's lease has expired. After
    /// the end of the lease, only subleaders may become leader until this time has passed. With Redis, it is
    /// also the interval at which a subleader checks when the leader last published its id in Redis.
    subleader_check: Duration = s(1), ms(10), s(60),
        "リーダーではないワーカーが、リーダーのリースが切れたかどうかを調べる間隔。リースが切れてからこの時間が過ぎるまでは、サブリーダーだけがリーダーになれる。Redis を使うときは、リーダーが最後に自分の ID を公開した時刻をサブリーダーが調べる間隔でもある。";
    /// Interval at which a worker sends its heartbeat.
    heartbeat_interval: Duration = s(1), ms(10), s(60),
        "ワーカーがハートビートを送る間隔。";
    /// Maximum age of a worker's heartbeat. If it is older, the worker gets no new runs.
    heartbeat_ttl: Duration = s(5), ms(30), s(300),
        "ハートビートがこれより古いワーカーには新しい実行を割り当てない。";
    /// When heartbeat_ttl has passed without a heartbeat, the leader calls the worker. If the worker
    /// answers no call for this additional time, the leader detaches it.
    worker_detach_grace: Duration = s(5), ms(0), s(600),
        "heartbeat_ttl を過ぎてもハートビートがないワーカーを、リーダーが呼び出す。そこからさらに worker_detach_grace のあいだ一度も応答がなければ、リーダーはワーカーを切り離す。";
    /// Maximum time between the due time of a run (or its assignment, if that is later) and its start.
    /// After this time the leader takes the run back from the worker and assigns it again.
    reassign_after: Duration = s(15), ms(20), s(3_600),
        "割り当て済みの実行が、予定時刻（割り当てのほうが遅ければ割り当ての時刻）からこの時間を過ぎても開始されないと、リーダーは実行を取り戻して割り当て直す。";
    /// Maximum number of assignments in a row that do not lead to a start. When a run reaches this number,
    /// it becomes EXPIRED.
    max_releases: u32 = 20, 1, 10_000,
        "実行が開始されないまま連続して割り当てられる回数の上限。これに達すると EXPIRED になる。";
    /// Interval at which a worker renews the leases of its runs.
    lease_renew: Duration = s(3), ms(10), s(60),
        "ワーカーが自分の実行のリースを更新する間隔。";
    /// How long a lease is valid after its last renewal. If a worker stops renewing, the leader recovers
    /// its runs after this time plus steal_grace.
    lease_ttl: Duration = s(30), ms(40), s(3_600),
        "最後の更新の後、リースが有効である時間。ワーカーが更新しなくなると、リーダーは、この時間と steal_grace の合計が過ぎてからその実行を回収する。";
    /// Length of a database outage during which running processes must not be stopped. This value changes
    /// nothing by itself. It is only a lower bound in a rule for lease_ttl, because a worker sends SIGTERM
    /// when two thirds of lease_ttl have passed since the last renewal.
    outage_tolerance: Duration = s(15), ms(0), s(3_600),
        "データベースに接続できなくても、実行中のプロセスを止めてはならない時間。この値だけでは動作は変わらない。ワーカーは最後の更新から lease_ttl の3分の2が過ぎると SIGTERM を送るため、lease_ttl の規則の中で下限としてだけ使われる。";
    /// If a worker cannot renew a lease, it sends SIGKILL to the running processes this long before the
    /// lease ends.
    kill_margin: Duration = s(3), ms(1), s(600),
        "リースを更新できないとき、リース終了のどれだけ前に実行中のプロセスへ SIGKILL を送るか。";
    /// Time that the leader waits after the end of a lease before it recovers ("steals") the runs of the
    /// lease.
    steal_grace: Duration = s(3), ms(0), s(600),
        "リースが切れてから実行を回収するまでの猶予。";
    /// Number of slots of a worker for commands that the leader assigns. The worker has the same number of
    /// slots for commands that it claims. The value auto means four for each core.
    max_jobs_per_worker: SlotSetting = SlotSetting::Auto, SlotSetting::Fixed(1), SlotSetting::Fixed(10_000),
        "リーダーが割り当てるコマンドのための、1つのワーカーのスロット数。ワーカーが自分で取得するコマンドのためにも、同じ数のスロットがある。auto は1コアにつき4。";
    /// Maximum number of functions of the default queue that a worker runs at the same time.
    function_slots: u32 = 256, 1, 100_000,
        "1つのワーカーが同時に実行する、既定のキューの関数の最大数。";
    /// Maximum number of times that a detached worker asks other nodes whether it may continue its runs, if it
    /// gets no answer.
    continuation_retry_count: u32 = 3, 1, 1_000,
        "切り離されたワーカーが、応答がないときに、実行を続けてよいかをほかのノードに問い合わせる回数の上限。";
    /// Interval at which a detached worker asks other nodes whether it may continue its runs, as long as it
    /// gets no answer.
    continuation_retry_interval: Duration = ms(300), ms(1), s(60),
        "切り離されたワーカーが、応答がないあいだ、実行を続けてよいかをほかのノードに問い合わせる間隔。";
    /// Maximum delay of the start of a scheduled run. A run that has not started within this delay is SKIPPED,
    /// so that not too many old runs start together after an outage. A job can choose another misfire policy.
    skip_late_after: Duration = s(300), ms(30), days(366),
        "予定された実行は、開始がこれより遅れると SKIPPED になる。障害の復旧直後に大量の古い実行が一斉に始まるのを防ぐ。ジョブごとに別のミスファイア方針を選べる。";
    /// How many times a failed command is retried, if its job does not set a number. The default is
    /// no retry, because it may be unsafe to run a script twice.
    max_retries_command: u32 = 0, 0, 1_000,
        "失敗したコマンドを再試行する回数（ジョブごとに変更できる）。スクリプトを2回実行すると問題が起きることがあるため、既定では再試行しない。";
    /// How many times a failed function is retried, if its job does not set a number.
    max_retries_function: u32 = 3, 0, 1_000,
        "失敗した関数を再試行する回数（ジョブごとに変更できる）。";
    /// Delay before the first retry. Each further delay is twice the previous one.
    retry_backoff: Duration = s(30), ms(0), days(7),
        "最初の再試行までの待ち時間。以後は毎回2倍になる。";
    /// Maximum delay before a retry.
    retry_backoff_cap: Duration = s(900), ms(0), days(30),
        "再試行までの待ち時間の上限。";
    /// Maximum random reduction of each retry delay, in percent. With a reduction, runs that failed at the
    /// same time are retried at different times.
    retry_jitter_percent: u32 = 0, 0, 100,
        "再試行の待ち時間を、最大でこの割合（%）までランダムに短くする。同時に失敗した実行が同時に再試行されるのを防ぐ。";
    /// Maximum run time of one attempt, if its job does not set one. A longer attempt is stopped as
    /// TIMED_OUT.
    timeout: Duration = s(1_800), ms(10), days(366),
        "1回の試行の最大実行時間（ジョブごとに変更できる）。超えると TIMED_OUT になる。";
    /// Maximum time without a sign of life of an attempt: output, or (of a function) a heartbeat of its
    /// handler. After this time the worker stops the attempt with HEARTBEAT_TIMEOUT. A job can set its own
    /// time.
    heartbeat_timeout: Option<Duration> = None, Some(ms(10)), Some(days(366)),
        "試行の出力もハートビートもないままこの時間が過ぎると、ワーカーは試行を HEARTBEAT_TIMEOUT として停止する（ジョブごとに変更できる）。";
    /// Replaces the setting heartbeat_timeout for an attempt whose handler has reported progress at least
    /// once. It has no effect on a job that sets its own heartbeat_timeout.
    progress_heartbeat_timeout: Option<Duration> = Some(s(300)), Some(ms(10)), Some(days(366)),
        "一度でも進捗を報告したハンドラーに対して、設定 heartbeat_timeout の代わりに使う時間。heartbeat_timeout をジョブ側で指定している場合は影響しない。";
    /// Time between SIGTERM and SIGKILL when a process is stopped.
    stop_grace: Duration = s(10), ms(0), s(3_600),
        "プロセスを停止するとき、SIGTERM を送ってから SIGKILL を送るまでの猶予。";
    /// Interval at which the leader searches for expired leases and for assigned runs that did not start in
    /// time.
    recovery_interval: Duration = s(5), ms(10), s(3_600),
        "リーダーが、切れたリースと、時間内に開始されなかった割り当て済みの実行を探す間隔。";
    /// Whether the leader recovers the runs of expired leases and assigns runs again that did not start in
    /// time. Turn it off only to preserve the state of a broken cluster for investigation.
    recovery_enabled: bool = true, false, true,
        "リーダーが、切れたリースの実行を回収し、時間内に開始されなかった実行を割り当て直すかどうか。障害を調査するためにクラスターの状態を保ちたいときだけ無効にする。";
    /// Not used yet: number of days after which tasuki will move log text from the database to an archive.
    log_retention_days_db: u32 = 7, 0, 36_500,
        "まだ使われていない。ログの本文をデータベースからアーカイブに移動するまでの日数になる予定。";
}
