//! Laws of forming: whatever the nodes see of each other, and whoever stops or loses a disk, one cluster comes of it.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// A node of the model. `joined` is the cluster that took it in.
#[derive(Debug, Clone)]
struct Node {
    record: Record,
    joined: Option<String>,
    /// The round in progress: the record it began with and whom it met so far.
    round: Option<(Record, Vec<Met>)>,
    before: Vec<Who>,
}

impl Node {
    fn new(name: usize, disk: usize) -> Node {
        let (name, instance) = (format!("n{name}"), format!("n{name}-disk{disk}"));
        Node { record: Record { name, instance, ..Record::default() }, joined: None, round: None, before: Vec::new() }
    }

    fn who(&self) -> Who {
        let Record { name, instance, .. } = &self.record;
        Who { name: name.clone(), instance: instance.clone(), address: format!("{name}:1") }
    }

    fn cluster(&self) -> Option<&str> {
        self.joined.as_deref().or(self.record.founding().map(|founding| founding.id.as_str()))
    }

    fn shows(&self) -> Met {
        let Record { promised, voided, .. } = &self.record;
        let state = match self.cluster() {
            Some(cluster_id) => State::Member { cluster_id: cluster_id.to_owned() },
            None => State::Forming { promised: promised.clone(), voided: voided.clone() },
        };
        Met { who: self.who(), state }
    }
}

/// What happens next in the model.
#[derive(Debug, Clone, Copy)]
enum Event {
    Begin(usize),
    /// The first meets the second, if the first is in a round.
    Meet(usize, usize),
    End(usize),
    /// The process stops and starts again: the round is forgotten, the disk is not.
    Restart(usize),
    /// At most one disk is lost: the majority of a founding never is.
    LoseDisk(usize),
}

struct Model {
    nodes: Vec<Node>,
    expect: usize,
    lost: bool,
    ids: usize,
}

impl Model {
    fn new(count: usize, expect: usize) -> Model {
        Model { nodes: (0..count).map(|name| Node::new(name, 0)).collect(), expect, lost: false, ids: 0 }
    }

    fn take(&mut self, event: Event) {
        let count = self.nodes.len();
        match event {
            Event::Begin(at) => {
                let node = &mut self.nodes[at % count];
                node.round = Some((node.record.clone(), Vec::new()));
            }
            Event::Meet(at, other) if at % count != other % count => {
                let shown = self.nodes[other % count].shows();
                if let Some((_, met)) = &mut self.nodes[at % count].round {
                    met.retain(|earlier| earlier.who.name != shown.who.name);
                    met.push(shown);
                }
            }
            Event::Meet(..) => {}
            Event::End(at) => self.end(at % count),
            Event::Restart(at) => self.nodes[at % count].round = None,
            Event::LoseDisk(at) if !self.lost => {
                self.lost = true;
                self.nodes[at % count] = Node::new(at % count, 1);
            }
            Event::LoseDisk(_) => {}
        }
    }

    fn end(&mut self, at: usize) {
        let (expect, fresh_id) = (Some(self.expect), format!("founding-{}", self.ids));
        self.ids += 1;
        let node = &mut self.nodes[at];
        let Some((own, met)) = node.round.take() else { return };
        if node.cluster().is_some() {
            return;
        }
        let mut seen: Vec<Who> = met.iter().map(|met| met.who.clone()).collect();
        seen.sort();
        let (settled, address) = (seen == node.before, format!("{}:1", node.record.name));
        let round =
            Round { own: &own, address: &address, expect, met: &met, unanswered: 0, settled, fresh_id: &fresh_id };
        let step = decide(&round);
        apply(&mut node.record, &step);
        if let Step::Join { cluster_id } = step {
            node.joined = Some(cluster_id);
        }
        node.before = seen;
    }

    fn clusters(&self) -> BTreeSet<&str> {
        self.nodes.iter().filter_map(Node::cluster).collect()
    }

    /// Everybody meets everybody.
    fn fair_round(&mut self) {
        for at in 0..self.nodes.len() {
            self.take(Event::Begin(at));
            for other in 0..self.nodes.len() {
                self.take(Event::Meet(at, other));
            }
            self.take(Event::End(at));
        }
    }
}

fn event(count: usize) -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..count).prop_map(Event::Begin),
        12 => (0..count, 0..count).prop_map(|(at, other)| Event::Meet(at, other)),
        4 => (0..count).prop_map(Event::End),
        1 => (0..count).prop_map(Event::Restart),
        1 => (0..count).prop_map(Event::LoseDisk),
    ]
}

fn story() -> impl Strategy<Value = (usize, usize, Vec<Event>)> {
    // Fewer than twice as many nodes as found a cluster.
    prop_oneof![Just((3, 3)), Just((4, 3)), Just((5, 3)), Just((5, 5)), Just((8, 5))].prop_flat_map(
        |(count, expect)| {
            proptest::collection::vec(event(count), 0..400).prop_map(move |events| (count, expect, events))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]
    #[test]
    fn one_cluster_comes_of_it_and_never_two((count, expect, events) in story()) {
        let mut model = Model::new(count, expect);
        for event in events {
            model.take(event);
            prop_assert!(model.clusters().len() <= 1, "{:?}: {:#?}", event, model.nodes);
        }
        for _ in 0..12 {
            model.fair_round();
            prop_assert!(model.clusters().len() <= 1, "{:#?}", model.nodes);
        }
        prop_assert!(model.nodes.iter().all(|node| node.cluster().is_some()), "not formed: {:#?}", model.nodes);
    }
}

fn met(name: &str, state: State) -> Met {
    let who = Who { name: name.to_owned(), instance: format!("{name}-i"), address: format!("{name}:1") };
    Met { who, state }
}

fn forming() -> State {
    State::Forming { promised: None, voided: Vec::new() }
}

fn step(expect: Option<usize>, met: &[Met], unanswered: usize) -> Step {
    let own = Record { name: "b".to_owned(), instance: "b-i".to_owned(), ..Record::default() };
    let round = Round { own: &own, address: "b:1", expect, met, unanswered, settled: true, fresh_id: "new" };
    decide(&round)
}

#[test]
fn a_node_that_should_not_found_says_why() {
    let cluster = |id: &str| State::Member { cluster_id: id.to_owned() };
    let wait = |step: Step| match step {
        Step::Wait(waiting) => waiting,
        other => panic!("{other:?}"),
    };
    let two = [met("a", cluster("x")), met("c", cluster("y"))];
    assert_eq!(wait(step(Some(3), &two, 0)), Waiting::TwoClusters(vec!["x".into(), "y".into()]));
    assert_eq!(wait(step(Some(3), &[met("c", forming())], 0)), Waiting::ForNodes { found: 2, expect: 3 });
    assert_eq!(wait(step(None, &[met("c", forming())], 0)), Waiting::ForCluster);
    let lower = [met("a", forming()), met("c", forming())];
    assert_eq!(wait(step(Some(3), &lower, 0)), Waiting::ForProposal("a".into()));
    let twin = Met { who: Who { instance: "other".into(), ..met("b", forming()).who }, state: forming() };
    assert_eq!(wait(step(Some(2), std::slice::from_ref(&twin), 0)), Waiting::SameName(twin.who));
    let higher = [met("c", forming()), met("d", forming())];
    let unanswered = Waiting::MostUnanswered { found: 3, unanswered: 3 };
    assert_eq!(wait(step(Some(3), &higher, 3)), unanswered);
    let crowd: Vec<Met> = ["c", "d", "e", "f", "g"].map(|name| met(name, forming())).into();
    assert_eq!(wait(step(Some(3), &crowd, 0)), Waiting::TooManyNodes { found: 6, expect: 3 });
    assert_eq!(wait(step(Some(3), &[met("c", State::Silent)], 0)), Waiting::OlderRelease("c:1".into()));
}

#[test]
fn a_node_joins_what_exists_and_proposes_what_does_not() {
    let member = met("c", State::Member { cluster_id: "x".to_owned() });
    assert_eq!(step(Some(3), &[met("a", forming()), member], 9), Step::Join { cluster_id: "x".to_owned() });
    let Step::Promise(founding) = step(Some(3), &[met("d", forming()), met("c", forming())], 1) else {
        panic!("no proposal")
    };
    assert_eq!(founding.id, "new");
    assert_eq!(founding.node("b-i"), Some(1));
    assert_eq!(founding.node("d-i"), Some(3));
    assert_eq!(
        step(Some(1), &[], 0),
        Step::Promise(Founding { id: "new".into(), members: vec![founding.members[0].clone()] })
    );
}
