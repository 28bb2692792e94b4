-- Books, who has borrowed them, and which are overdue.
CREATE TABLE books (
    id INTEGER PRIMARY KEY,
    title TEXT NOT NULL,
    author TEXT NOT NULL
);

CREATE TABLE loans (
    id INTEGER PRIMARY KEY,
    book_id INTEGER NOT NULL REFERENCES books (id),
    reader TEXT NOT NULL,
    due_date DATE NOT NULL,
    returned BOOLEAN NOT NULL DEFAULT FALSE
);

CREATE INDEX loans_by_date ON loans (due_date);

SELECT books.title, loans.reader, loans.due_date
FROM loans
JOIN books ON books.id = loans.book_id
WHERE NOT loans.returned AND loans.due_date < CURRENT_DATE
ORDER BY loans.due_date;
