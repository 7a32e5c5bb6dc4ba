//! `tasuki task submit`: submits one task, or many from a file.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::api_server_and_token_flags::ApiServerFlags;
use crate::client::ApiClient;
use crate::failure::Failure;
use crate::flag_values::{self, PastOrFuture, RunArguments};
use crate::run::WaitOptions;
use crate::view::{OutputStyle, count_with_noun, field_items};

/// Submit tasks: runs of a job on request
#[derive(Args)]
pub(crate) struct TaskCommand {
    #[command(flatten)]
    endpoint: ApiServerFlags,
    #[command(subcommand)]
    verb: RunVerb,
}

#[derive(Subcommand)]
enum RunVerb {
    Submit(Submit),
}

/// Maximum size of one batch request: the server accepts 1,000 tasks and 8 MiB.
const MAX_TASKS_PER_REQUEST: usize = 1_000;
const MAX_BYTES_PER_REQUEST: usize = 7 << 20;

/// The fields of a task in a file.
const TASK_FIELDS: [&str; 8] =
    ["job", "args", "scheduled_for", "expires_at", "scope", "idempotency_key", "queue", "priority"];

/// Submit a task (a run of a job, with arguments for this run only), or submit many tasks from a file with one JSON object
/// per line
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki task submit resize --arg image=42.png
  tasuki task submit resize --arg image=42.png --key resize-42 --wait
  tasuki task submit report --at 2h --expires 3h
  tasuki task submit resize --arg image=43.png --queue slow --priority high
  tasuki task submit --file tasks.jsonl
  seq 3 | jq -c '{args: {n: .}}' | tasuki task submit resize --file -

Example line of a file:
  {\"job\": \"resize\", \"args\": {\"image\": \"42.png\"}, \"idempotency_key\": \"resize-42\"}
Other fields: scheduled_for, expires_at, queue, priority and scope ({\"kind\": \"tenant\",
\"id\": \"42\"}). Lines are sent in batches of 1,000. Set idempotency keys, so that you can send the
file again after a failure.")]
struct Submit {
    /// Name of the job. With --file: the job for those lines that have no `job` field
    #[arg(required_unless_present = "file")]
    job: Option<String>,
    /// File with tasks, one JSON object per line; - is stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pairs", "object", "at", "expires", "scope", "key", "queue", "priority", "wait", "follow", "timeout"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    arguments: RunArguments,
    /// Planned time of the run (the run does not start earlier): an instant, or a duration from now [default: now]
    #[arg(long, value_name = "WHEN")]
    at: Option<String>,
    /// Latest start, after which the run expires: an instant, or a duration from now [default: none]
    #[arg(long, value_name = "WHEN")]
    expires: Option<String>,
    /// Scope of the run, such as tenant/42
    #[arg(long, value_name = "KIND/ID")]
    scope: Option<String>,
    /// Idempotency key: submissions with the same key create one run
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Queue whose slots the run uses, for functions only [default: the queue of the job]
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Priority among waiting runs, for functions only: lowest, low, normal, high, highest [default: the priority of the
    /// job]
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<String>,
    #[command(flatten)]
    wait_options: WaitOptions,
}

impl TaskCommand {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        let RunVerb::Submit(submit) = &self.verb;
        self.endpoint.with_client(now, async |client, style| match &submit.file {
            None => submit.submit_one(client, style, now).await,
            Some(file) => {
                submit.submit_file(client, style, &flag_values::read_file_or_stdin(file)?).await
            }
        })
    }
}

impl Submit {
    async fn submit_one(
        &self,
        client: &ApiClient,
        style: &OutputStyle,
        now: Timestamp,
    ) -> Result<String, Failure> {
        self.wait_options.validate()?;
        let mut body = json!({ "job": self.job });
        if let Some(args) = self.arguments.parse()? {
            body["args"] = args;
        }
        for (flag, name, input) in
            [("--at", "scheduled_for", &self.at), ("--expires", "expires_at", &self.expires)]
        {
            if let Some(instant) = flag_values::instant_flag_to_api_text(
                flag,
                input.as_deref(),
                PastOrFuture::Future,
                now,
            )? {
                body[name] = json!(instant);
            }
        }
        if let Some(scope) = &self.scope {
            body["scope"] = flag_values::parse_run_scope_flag(scope)?;
        }
        for (name, input) in [("queue", &self.queue), ("priority", &self.priority)] {
            if let Some(input) = input {
                body[name] = json!(input);
            }
        }
        let request = client.post("/tasks").body(body).idempotency_key(self.key.as_deref());
        let response = request.send().await?;
        self.wait_options.show_or_wait(client, style, response).await
    }

    /// Submits the tasks of a file. All lines are parsed and checked before the first batch is sent.
    async fn submit_file(
        &self,
        client: &ApiClient,
        style: &OutputStyle,
        text: &str,
    ) -> Result<String, Failure> {
        let tasks = self.parse_lines(text)?;
        let mut created: Vec<Value> = Vec::new();
        for batch in split_into_batches(&tasks) {
            let body = json!({ "tasks": batch });
            let response = client.post("/tasks/batch").body(body).send().await;
            match response {
                Ok(response) => created.extend_from_slice(field_items(&response.body, "items")),
                Err(failure) if created.is_empty() => return Err(failure),
                Err(failure) => {
                    let submitted = summary(style, &created);
                    eprintln!(
                        "{} submitted before this error:",
                        count_with_noun(created.len(), "task")
                    );
                    return Err(failure.with_stdout(submitted));
                }
            }
        }
        Ok(summary(style, &created))
    }

    fn parse_lines(&self, text: &str) -> Result<Vec<Value>, Failure> {
        let mut tasks = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim().is_empty() {
                continue;
            }
            let line_failure = |why: String| Failure::bad_usage(format!("line {number}: {why}"));
            let mut task: Map<String, Value> = serde_json::from_str(line)
                .map_err(|error| line_failure(format!("not a JSON object: {error}")))?;
            if let Some(name) = task.keys().find(|name| !TASK_FIELDS.contains(&name.as_str())) {
                let known = TASK_FIELDS.join(", ");
                return Err(line_failure(format!(
                    "{name}: unknown field, expected one of {known}"
                )));
            }
            if !task.contains_key("job") {
                let job =
                    self.job.as_ref().ok_or_else(|| line_failure("job: missing".to_owned()))?;
                task.insert("job".to_owned(), json!(job));
            }
            tasks.push(Value::Object(task));
        }
        match tasks.is_empty() {
            true => Err(Failure::bad_usage("the file contains no tasks")),
            false => Ok(tasks),
        }
    }
}

/// Splits the tasks into batches that fit into one request each.
fn split_into_batches(tasks: &[Value]) -> Vec<&[Value]> {
    let mut batches = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, task) in tasks.iter().enumerate() {
        let length = task.to_string().len() + 1;
        if index > start
            && (index - start == MAX_TASKS_PER_REQUEST || bytes + length > MAX_BYTES_PER_REQUEST)
        {
            batches.push(&tasks[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += length;
    }
    batches.push(&tasks[start..]);
    batches
}

fn summary(style: &OutputStyle, created: &[Value]) -> String {
    style.render(&json!({ "items": created }), |_, _| {
        let existed = created.iter().filter(|one| one["existed"] == true).count();
        let id = |one: Option<&Value>| one.map_or(String::new(), |one| one["id"].to_string());
        let ids = match created.len() {
            1 => format!("run {}", id(created.first())),
            _ => format!("runs {} to {}", id(created.first()), id(created.last())),
        };
        match existed {
            0 => format!("{} submitted: {ids}\n", count_with_noun(created.len(), "task")),
            existed => format!(
                "{} submitted: {ids}; {existed} of them already existed\n",
                count_with_noun(created.len(), "task")
            ),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_as_large_as_allowed_and_complete() {
        let small: Vec<Value> = (0..2_500).map(|n| json!({ "n": n })).collect();
        assert_eq!(
            split_into_batches(&small).iter().map(|one| one.len()).collect::<Vec<_>>(),
            [1_000, 1_000, 500]
        );
        let large: Vec<Value> = (0..5).map(|_| json!("x".repeat(3 << 20))).collect();
        assert_eq!(
            split_into_batches(&large).iter().map(|one| one.len()).collect::<Vec<_>>(),
            [2, 2, 1]
        );
    }
}
