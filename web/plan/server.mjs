// Sends POST /paralleldit/plan. A server of another version may lack this route.

import { api } from '../../../scripts/api.js'

const NO_ROUTE = 404

let hasRoute = true

/** Returns whether the server may have the route. */
export const hasPlanRoute = () => hasRoute

/** Tries the route again: the server may have been replaced by one that has it. */
export function retryPlanRoute() {
  hasRoute = true
}

/** Returns the server's answer about a plan. Throws an Error that says why there is none. */
export async function askServer(question) {
  const response = await api.fetchApi('/paralleldit/plan', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(question)
  })
  if (response.ok) return response.json()
  hasRoute = response.status !== NO_ROUTE
  throw new Error(hasRoute ? await response.text() : `HTTP ${NO_ROUTE}`)
}
