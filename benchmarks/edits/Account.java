/** A bank account that never goes below zero. */
public class Account {
    private final String owner;
    private long balance;

    public Account(String owner) {
        this.owner = owner;
        this.balance = 0;
    }

    public void deposit(long amount) {
        if (amount <= 0) {
            throw new IllegalArgumentException("a deposit must be positive");
        }
        balance += amount;
    }

    public boolean withdraw(long amount) {
        if (amount > balance) {
            return false;
        }
        balance -= amount;
        return true;
    }

    public String describe() {
        return owner + " has " + balance;
    }
}
