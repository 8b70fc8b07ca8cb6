//! Control flow: where lanes that part at a branch meet again.

use crate::op::{EXIT, Op, Pc, Program};

/// Sets the reconvergence point of every branch to the start of its immediate post-dominator.
pub(crate) fn set_reconvergence(program: &mut Program) {
    let blocks = Blocks::new(program);
    let post_dominators = blocks.post_dominators();
    let exit = blocks.starts.len();
    for (block, post_dominator) in post_dominators[..exit].iter().enumerate() {
        let last = blocks.last(block, program.insts.len());
        let meet = match *post_dominator {
            Some(to) if to != exit => blocks.starts[to],
            _ => EXIT,
        };
        match &mut program.insts[last].op {
            Op::Branch { reconverge, .. } | Op::BranchTable { reconverge, .. } => *reconverge = meet,
            _ => {}
        }
    }
}

/// The basic blocks: block `starts.len()` is the virtual exit.
pub(crate) struct Blocks {
    pub(crate) starts: Vec<Pc>,
    pub(crate) successors: Vec<Vec<usize>>,
}

impl Blocks {
    pub(crate) fn new(program: &Program) -> Self {
        let insts = &program.insts;
        let mut leader = vec![false; insts.len() + 1];
        leader[0] = true;
        for (pc, inst) in insts.iter().enumerate() {
            match &inst.op {
                Op::Branch { target, .. } => leader[*target as usize] = true,
                Op::BranchTable { targets, .. } => targets.iter().for_each(|t| leader[*t as usize] = true),
                Op::Return | Op::Exit | Op::Trap => {}
                _ => continue,
            }
            leader[pc + 1] = true;
        }
        let starts: Vec<Pc> = (0..insts.len()).filter(|&pc| leader[pc]).map(|pc| pc as Pc).collect();
        let mut block_of = vec![starts.len(); insts.len() + 1];
        for (block, &start) in starts.iter().enumerate() {
            let end = starts.get(block + 1).map_or(insts.len(), |&p| p as usize);
            block_of[start as usize..end].fill(block);
        }
        let mut blocks = Blocks { starts, successors: Vec::new() };
        for block in 0..blocks.starts.len() {
            let last = blocks.last(block, insts.len());
            let next = block_of[last + 1];
            let exit = blocks.starts.len();
            let mut to: Vec<usize> = match &insts[last].op {
                Op::Branch { target, .. } => vec![block_of[*target as usize]],
                Op::BranchTable { targets, .. } => targets.iter().map(|t| block_of[*t as usize]).collect(),
                Op::Return | Op::Exit => vec![exit],
                // A trap ends the kernel: it must not move the meeting point of the lanes that go on.
                Op::Trap => vec![],
                _ => vec![next],
            };
            if insts[last].guard.is_some() {
                to.push(next);
            }
            blocks.successors.push(to);
        }
        blocks
    }

    /// The last instruction of a block.
    pub(crate) fn last(&self, block: usize, length: usize) -> usize {
        self.starts.get(block + 1).map_or(length, |&p| p as usize) - 1
    }

    /// The immediate post-dominator of every block, by the iteration of Cooper, Harvey and Kennedy on the reversed graph.
    /// Blocks that never reach the exit have none.
    fn post_dominators(&self) -> Vec<Option<usize>> {
        let exit = self.successors.len();
        let mut predecessors = vec![Vec::new(); exit + 1];
        for (block, to) in self.successors.iter().enumerate() {
            for &to in to {
                predecessors[to].push(block);
            }
        }
        let order = postorder(&predecessors, exit);
        let mut rank = vec![usize::MAX; exit + 1];
        for (i, &block) in order.iter().enumerate() {
            rank[block] = i;
        }
        let mut dominator = vec![None; exit + 1];
        dominator[exit] = Some(exit);
        let mut changed = true;
        while changed {
            changed = false;
            for &block in order.iter().rev().filter(|&&b| b != exit) {
                let mut meet: Option<usize> = None;
                for &to in self.successors[block].iter().filter(|&&t| dominator[t].is_some()) {
                    meet = Some(meet.map_or(to, |m| common(m, to, &dominator, &rank)));
                }
                if meet != dominator[block] {
                    dominator[block] = meet;
                    changed = true;
                }
            }
        }
        dominator
    }
}

/// The nearest block that both chains of post-dominators pass.
fn common(mut a: usize, mut b: usize, dominator: &[Option<usize>], rank: &[usize]) -> usize {
    while a != b {
        let lower = if rank[a] < rank[b] { &mut a } else { &mut b };
        match dominator[*lower] {
            Some(up) => *lower = up,
            None => return *lower,
        }
    }
    a
}

fn postorder(edges: &[Vec<usize>], root: usize) -> Vec<usize> {
    let mut seen = vec![false; edges.len()];
    let mut stack = vec![(root, 0)];
    let mut order = Vec::new();
    seen[root] = true;
    while let Some((block, at)) = stack.pop() {
        match edges[block].get(at) {
            Some(&to) => {
                stack.push((block, at + 1));
                if !seen[to] {
                    seen[to] = true;
                    stack.push((to, 0));
                }
            }
            None => order.push(block),
        }
    }
    order
}
