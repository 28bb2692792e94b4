/// A queue of bounded length: the oldest entry makes room for the newest.
pub struct RecentQueue {
    entries: Vec<String>,
    capacity: usize,
}

impl RecentQueue {
    pub fn new(capacity: usize) -> Self {
        RecentQueue { entries: Vec::new(), capacity }
    }

    pub fn push(&mut self, entry: String) {
        if self.entries.len() == self.capacity {
            self.entries.remove(0);
        }
        self.entries.push(entry);
    }

    pub fn latest(&self) -> Option<&String> {
        self.entries.last()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }
}
