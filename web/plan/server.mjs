// POST /paralleldit/plan, which a server of another version may not have.

import { api } from '../../../scripts/api.js'

const NO_ROUTE = 404

let hasRoute = true

/** Whether there is anybody to ask. */
export const canAnswer = () => hasRoute

/** The server may be another one, that knows the question. */
export function askAgain() {
  hasRoute = true
}

/** The server's answer about a plan. Raises Error with what there is to say of it. */
export async function request(question) {
  const response = await api.fetchApi('/paralleldit/plan', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(question)
  })
  if (response.ok) return response.json()
  hasRoute = response.status !== NO_ROUTE
  throw new Error(hasRoute ? await response.text() : `HTTP ${NO_ROUTE}`)
}
