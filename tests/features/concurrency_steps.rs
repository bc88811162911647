//! Owns: the steps with several clients at once. Each client is a task.

use std::collections::{BTreeMap, BTreeSet};

use cucumber::{then, when};
use serde_json::{Value, json};

use crate::json_shorthand;
use crate::node::call;
use crate::world::World;

/// Runs `count` clients at once and gives their results in the order of their numbers.
async fn clients<F, R>(count: usize, client: impl Fn(usize) -> F) -> Vec<R>
where
    F: Future<Output = R> + Send + 'static,
    R: Send + 'static,
{
    let tasks: Vec<_> = (0..count).map(|n| tokio::spawn(client(n))).collect();
    let mut results = Vec::with_capacity(count);
    for task in tasks {
        results.push(task.await.expect("a client ends"));
    }
    results
}

#[when(regex = r#"^(\d+) clients append the entry "(.*?)" to "(.*?)" at once$"#)]
async fn append_the_same_entry(world: &mut World, count: usize, entry_id: String, session_id: String) {
    let calls = world.node.calls();
    let answers = clients(count, |n| {
        let (calls, entry_id, session_id) = (calls.clone(), entry_id.clone(), session_id.clone());
        async move {
            let message = json_shorthand::message("user", &format!("from client {n}"));
            let body = json!({ "session_id": session_id, "entry_id": entry_id, "message": message }).to_string();
            call(&calls, "session::append", &body).await.expect("append exists")
        }
    })
    .await;
    let answers: Result<Vec<Value>, String> = answers.into_iter().collect();
    world.answer = Some(answers.map(|answers| json!({ "answers": answers })));
}

#[when(regex = r#"^(\d+) clients call "(.*?)" with (\{.*\}) at once$"#)]
async fn call_at_once(world: &mut World, count: usize, function: String, body: String) {
    let calls = world.node.calls();
    let body = world.expand(&body);
    let answers = clients(count, |_| {
        let (calls, function, body) = (calls.clone(), function.clone(), body.clone());
        async move { call(&calls, &function, &body).await.expect("the function exists") }
    })
    .await;
    let answers: Result<Vec<Value>, String> = answers.into_iter().collect();
    world.answer = Some(answers.map(|answers| json!({ "answers": answers })));
}

/// How many of the answers match this shape.
fn matching(world: &mut World, shape: &str) -> usize {
    let expected = world.expected(shape);
    let answers = world.answered();
    let answers = answers["answers"].as_array().expect("answers");
    let matches = |answer: &&Value| {
        json_shorthand::compare(&expected, answer, false, &mut json_shorthand::Variables::new()).is_ok()
    };
    answers.iter().filter(matches).count()
}

#[then(regex = r"^(\d+) of them gets (\{.*\}) and (\d+) get (\{.*\})$")]
async fn some_get(world: &mut World, some: usize, one: String, others: usize, other: String) {
    assert_eq!((matching(world, &one), matching(world, &other)), (some, others));
}

#[then(regex = r"^all (\d+) of them get (\{.*\})$")]
async fn all_get(world: &mut World, count: usize, shape: String) {
    assert_eq!(matching(world, &shape), count);
}

#[then(regex = r#"^the answers' "(.*?)" are all different$"#)]
async fn all_different(world: &mut World, field: String) {
    let answers = world.answered();
    let answers = answers["answers"].as_array().expect("answers");
    let values: BTreeSet<String> = answers.iter().map(|answer| answer[&field].to_string()).collect();
    assert_eq!(values.len(), answers.len());
}

#[then(regex = r#"^the roles in "(.*?)" repeat (".*")$"#)]
async fn roles_repeat(world: &mut World, session_id: String, roles: String) {
    let request = json!({ "session_id": session_id, "limit": 500 }).to_string();
    let page = world.read("session::messages", &request).await.unwrap();
    let roles: Vec<String> = serde_json::from_str(&format!("[{roles}]")).expect("names");
    for (item, role) in page["messages"].as_array().expect("a page").iter().zip(roles.iter().cycle()) {
        assert_eq!(item["message"]["role"], json!(role));
    }
    world.asserted.state = true;
}

#[then("all of them got the same answer")]
async fn the_same_answer(world: &mut World) {
    let answers = world.answered();
    let answers = answers["answers"].as_array().expect("answers");
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
}

#[when(regex = r#"^(\d+) clients each append (\d+) messages to "(.*?)" at once$"#)]
async fn append_messages(world: &mut World, count: usize, each: usize, session_id: String) {
    let calls = world.node.calls();
    let answers = clients(count, |client| {
        let (calls, session_id) = (calls.clone(), session_id.clone());
        async move {
            let mut answers = Vec::new();
            for n in 0..each {
                let message = json_shorthand::message("user", &format!("{client}/{n}"));
                let body = json!({ "session_id": session_id, "message": message }).to_string();
                answers.push(call(&calls, "session::append", &body).await.expect("append exists"));
            }
            answers
        }
    })
    .await;
    let answers: Result<Vec<Value>, String> = answers.into_iter().flatten().collect();
    world.answer = Some(answers.map(|answers| json!({ "answers": answers })));
}

/// Every acknowledged entry is on the path, each is the child of the one before it, and the entries of one client are
/// in the order in which it sent them.
#[then(regex = r#"^the transcript of "(.*?)" is one unbroken chain of (\d+) messages$"#)]
async fn one_unbroken_chain(world: &mut World, session_id: String, count: usize) {
    let answers = world.answered();
    let answers = answers["answers"].as_array().expect("answers");
    assert_eq!(answers.len(), count);
    let request = json!({ "session_id": session_id, "limit": 500 }).to_string();
    let page = world.read("session::messages", &request).await.unwrap();
    let path: Vec<&Value> = page["messages"].as_array().unwrap().iter().map(|item| &item["entry_id"]).collect();
    assert_eq!(path.len(), count);
    for answer in answers {
        let at = path.iter().position(|id| **id == answer["entry_id"]).expect("an answered entry is on the path");
        let parent = if at == 0 { &Value::Null } else { path[at - 1] };
        assert_eq!(
            answer.get("parent_id").unwrap_or(&Value::Null),
            parent,
            "the parent of entry {at} is the one before it"
        );
    }
    let texts: Vec<&str> = page["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["message"]["content"][0]["text"].as_str().unwrap())
        .collect();
    let mut next = BTreeMap::<&str, usize>::new();
    for text in texts {
        let (client, n) = text.split_once('/').unwrap();
        let expected = next.entry(client).or_default();
        assert_eq!(n, expected.to_string(), "client {client}'s messages keep their order");
        *expected += 1;
    }
    world.asserted.state = true;
}

#[when(regex = r#"^(\d+) clients each update "(.*?)" of "(.*?)" (\d+) times, guarded by expected_revision$"#)]
async fn guarded_updates(world: &mut World, count: usize, entry_id: String, session_id: String, each: usize) {
    let calls = world.node.calls();
    let results = clients(count, |client| {
        let (calls, entry_id, session_id) = (calls.clone(), entry_id.clone(), session_id.clone());
        async move {
            for n in 0..each {
                add_a_line(&calls, &session_id, &entry_id, &format!("{client}/{n}")).await?;
            }
            Ok::<(), String>(())
        }
    })
    .await;
    let done: Result<Vec<()>, String> = results.into_iter().collect();
    world.answer = Some(done.map(|_| json!({ "done": count * each })));
}

/// Reads the message, adds a block and writes it back with the revision it read. Retries when another client was
/// faster.
async fn add_a_line(
    calls: &session_manager::surface::calls::Calls,
    session_id: &str,
    entry_id: &str,
    line: &str,
) -> Result<(), String> {
    let read = json!({ "session_id": session_id, "entry_id": entry_id }).to_string();
    // An attempt fails only when another client succeeds, so the number of updates bounds the attempts.
    for _ in 0..10_000 {
        let entry = call(calls, "session::get-message", &read).await.expect("get-message exists")?;
        let mut content = entry["entry"]["message"]["content"].as_array().cloned().unwrap_or_default();
        content.push(json!({ "type": "text", "text": line }));
        let write = json!({
            "session_id": session_id, "entry_id": entry_id, "content": content,
            "expected_revision": entry["entry"]["revision"],
        });
        let answer =
            call(calls, "session::update-message", &write.to_string()).await.expect("update-message exists")?;
        if answer["updated"] == true {
            return Ok(());
        }
    }
    Err("no attempt succeeded".to_owned())
}

#[then(regex = r#"^"(.*?)" of "(.*?)" holds every one of the (\d+) updates, at revision (\d+)$"#)]
async fn holds_every_update(world: &mut World, entry_id: String, session_id: String, lines: usize, revision: u64) {
    let read = json!({ "session_id": session_id, "entry_id": entry_id }).to_string();
    let entry = world.read("session::get-message", &read).await.unwrap();
    assert_eq!(entry["entry"]["revision"], json!(revision));
    let content = entry["entry"]["message"]["content"].as_array().unwrap();
    let texts: BTreeSet<&str> = content.iter().map(|block| block["text"].as_str().unwrap()).collect();
    // The first content of the message, then each update once.
    assert_eq!((content.len(), texts.len()), (lines + 1, lines + 1));
    world.asserted.state = true;
}
